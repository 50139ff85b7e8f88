"""The bench rig against the real engine: widened models, its servers, a measurement, a picture."""

from __future__ import annotations

import gzip
import json
import pstats
import sys
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file
from tiny_training.shapes import TARGET, Shape

from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY, TINY_EAGLE3
from tilespec import bench_tilespec, time_launches
from tilespec.decode import Decoding, Place
from tilespec.pad_target import write_wide_head, write_wide_model
from tilespec.prompts import Prompts
from tilespec.trace_steps import WAVES
from tilespec.tracing import trace
from tilespec.widen import Widening, widened_table

WIDE = Shape(hidden=512, intermediate=736, layers=6, heads=8, kv_heads=4, vocabulary=1300)
HEAD = Shape(hidden=256, intermediate=128, layers=1, heads=2, kv_heads=1)
WIDE_HEAD = Shape(hidden=512, intermediate=288, layers=1, heads=4, kv_heads=2, vocabulary=1300)
CODE = ["def main():\n    import", "class Foo(object):\n    def __init__(self", "import os\n\nfor i in range", "# This"]


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_tilespec", *map(str, arguments)])
    bench_tilespec.main()


def _launches(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """What launching a step costs these two servers' threads; three steps of the one that speculates are profiled."""
    out = folder / "launches.jsonl"
    load = ("--clients", 2, "--tokens", 16, "--waves", 2, "--temperatures", 0, "--profiled", 3)
    arguments = ("time_launches", "--prompts", folder / "prompts.json", "--out", out, *load)
    monkeypatch.setattr(sys, "argv", [*map(str, arguments)])
    time_launches.main()
    none, k2 = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()][1:]
    assert (none["what"], k2["what"]) == ("none", "k2")
    assert 0 < none["launch_us"] < k2["launch_us"]
    profiled: dict[tuple[str, int, str], tuple[int, ...]]
    profiled = pstats.Stats(str(folder / "launches-0.0-1-k2.prof")).stats  # type: ignore[attr-defined]
    assert [calls for (_, _, name), (calls, *_) in profiled.items() if name == "draft_forward"] == [3]


@pytest.mark.full
def test_a_widened_pair_serves_the_same_tokens(
    hf: HuggingFace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrow model's own greedy tokens, with drafts accepted; then one cell is measured, and not twice.

    The server that speculates has the other one's weights, and its head knows all tokens but the last added ones.
    """
    widening = Widening(TARGET, WIDE)
    write_wide_model(TINY, tmp_path / "target", widening, "cpu")
    head = load_file(TINY_EAGLE3 / "model.safetensors")
    table = widened_table(load_file(TINY / "model.safetensors").__getitem__, widening)
    write_wide_head(head, tmp_path / "eagle3", Widening(HEAD, WIDE_HEAD), (0, 1, 2), table[:1100] / widening.copies)
    monkeypatch.setattr(bench_tilespec, "STATE", tmp_path / "state.json")
    servers = ("--algorithm", "EAGLE3", "--settings", "none", "k2")
    _main(monkeypatch, "up", "--models", tmp_path, *servers, "--share-weights", "--measure-thread", "--logs", tmp_path)
    try:
        url = json.loads((tmp_path / "state.json").read_text())["running"]["k2"]["url"]
        texts = hf.tokenizer(CODE)["input_ids"]
        sampling = {"max_new_tokens": 32, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": texts, "sampling_params": sampling}
        answers = httpx.post(f"{url}/generate", json=body, timeout=120).raise_for_status().json()
        for text, answer in zip(texts, answers, strict=True):
            output = answer["output_ids"]
            assert output == hf.favourites([*text, *output[:-1]])[len(text) - 1 :]
        assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 12

        prompts = Prompts({"mixed": texts}, {"mixed": 1.0}, {"mixed": 0.0}, [], list(range(100, 900)), [])
        prompts.write(tmp_path / "prompts.json")
        once = ("run", "--prompts", tmp_path / "prompts.json", "--out", tmp_path / "out.jsonl")
        load = ("--only", "setting=k2", "--clients", 2, "--kinds", "mixed", "--temperatures", 0, "--tokens", 16)
        for _ in range(2):
            _main(monkeypatch, *once, *load)

        _launches(monkeypatch, tmp_path)

        wave = Decoding(clients=2, tokens=64, temperature=0.0, waves=WAVES)
        place = Place(url, tmp_path / "k2.progress")
        written = trace(place, wave, prompts.draw("mixed", "trace"), tmp_path / "traces", 0.1, ("CPU",))
        with gzip.open(written) as stream:
            assert json.load(stream)["traceEvents"]
    finally:
        _main(monkeypatch, "down")
    assert "weights are the first server's" in (tmp_path / "eagle3-k2.log").read_text(encoding="utf-8")
    first, *records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert first["algorithm"] == "EAGLE3"
    assert len(records) == 1
    assert records[0]["setting"] == "k2"
    assert 1.0 < records[0]["accept_length"] <= 3.0
    assert len(records[0]["each_wave"]) == bench_tilespec.waves("k2", 2)
    assert 0 < records[0]["launch_microseconds"] < 1e3 * records[0]["step_milliseconds"]
    assert 10 <= records[0]["tokens_each"] < 15  # without those of the prefill and of the first step
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", timeout=2)
