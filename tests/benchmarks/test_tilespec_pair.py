"""The bench rig without an engine: its models against Hugging Face, widening, a smoke training, prompts, plots."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_training.shapes import TARGET
from transformers import AutoModelForCausalLM

from tessera_testing.tiny import TINY
from tilespec import draw_pair, pad_target, plot_tilespec, prompts, train_pair
from tilespec.decode import Decoding, together
from tilespec.heads import Head
from tilespec.llama import Llama
from tilespec.progress import ROW
from tilespec.recipe import SMOKE
from tilespec.widen import Widening


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All four parts, trained for a few steps."""
    folder: Path = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_pair", "--sizes", "smoke", "--out", str(folder)])
        train_pair.main()
    return folder


def test_our_llama_is_hugging_faces() -> None:
    """States of all layers and logits agree on the tiny model."""
    ours = Llama(TARGET)
    ours.load_state_dict({name: weight.float() for name, weight in load_file(TINY / "model.safetensors").items()})
    theirs = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokens = torch.randint(5, 1000, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = ours(tokens, inner_layers=(0, 2))
        answer = theirs(input_ids=tokens, output_hidden_states=True)
    inner = torch.cat([answer.hidden_states[1], answer.hidden_states[3]], -1)
    torch.testing.assert_close(states.last, answer.hidden_states[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states.inner, inner, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.logits(states.last), answer.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("eagle3", [False, True])
def test_chains_are_drafts_one_at_a_time(*, eagle3: bool) -> None:
    """The second step of chain b sees the first steps up to b, and the second of no other chain."""
    torch.manual_seed(0)
    head = Head(SMOKE.head, eagle3=eagle3)
    width = SMOKE.head.hidden
    table, tokens = torch.randn(SMOKE.head.vocabulary, width), torch.randint(0, 500, (1, 12))
    features = torch.randn(1, 12, width * (3 if eagle3 else 1))
    with torch.no_grad():
        whole = head.chains(table, tokens, features, 3)
        for chain in (0, 4, 8):
            # Cut right after the chain's own tokens: it is now the last one, and nothing may depend on what is gone.
            end = chain + 1 + 3
            alone = head.chains(table, tokens[:, :end], features[:, :end], 3)
            for step in range(3):
                torch.testing.assert_close(alone[step].out[:, -1], whole[step].out[:, chain])


@pytest.mark.full
def test_smoke_training_and_widening(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses fall, and the wide models compute what the narrow ones do: 1e-5 of the logits' size, in float32."""
    records = [json.loads(line) for line in next(pair.glob("train-*.jsonl")).read_text().splitlines()]
    for part in ("target", "draft", "eagle", "eagle3"):
        losses = [record["loss"] for record in records if record["kind"] == "loss" and record["model"] == part]
        assert losses[-1] < losses[0]
    monkeypatch.setattr(
        sys, "argv", ["pad_target", "--sizes", "smoke", "--device", "cpu", "--pair", str(pair), "--out", str(tmp_path)]
    )
    pad_target.main()
    found = [json.loads(line) for line in (tmp_path / "agreement.jsonl").read_text().splitlines()][2:]
    assert [record["what"] for record in found] == ["wide", "eagle", "eagle3"]
    for record in found:
        assert record["largest_difference"] < 1e-4
        assert record["same_favourite"] > 0.99
    assert found[0]["mass_of_added_tokens"] < 0.05
    head = load_file(tmp_path / "eagle3/model.safetensors")
    shards = [load_file(path) for path in sorted((tmp_path / "target").glob("*.safetensors"))]
    outputs = next(shard["lm_head.weight"] for shard in shards if "lm_head.weight" in shard)
    assert torch.equal(head["lm_head.weight"], outputs[: SMOKE.draft_vocabulary])
    assert json.loads((tmp_path / "eagle3/config.json").read_text())["draft_vocab_size"] == SMOKE.draft_vocabulary
    drawn = tmp_path / "drawn"
    draw_pair.draw(SMOKE, tmp_path / "target", drawn, "cpu")
    for model in ("target", "eagle3"):
        assert (drawn / model / "config.json").read_text() == (tmp_path / model / "config.json").read_text()
    sizes = {name: (weight.dtype, weight.shape) for name, weight in head.items()}
    found_sizes = load_file(drawn / "eagle3/model.safetensors").items()
    assert {name: (weight.dtype, weight.shape) for name, weight in found_sizes} == sizes


@pytest.mark.full
def test_the_useless_draft_is_useless(pair: Path, tmp_path: Path) -> None:
    """It has the size of the good one, and guesses otherwise."""
    good, useless = (load_file(pair / "eagle/model.safetensors") for _ in range(2))
    widening = Widening(SMOKE.head, SMOKE.wide_head)
    pad_target.mix_up(useless)
    pad_target.write_wide_head(useless, tmp_path, widening, SMOKE.inner_layers)
    wide = load_file(tmp_path / "model.safetensors")
    assert not torch.equal(wide["fc.weight"][: SMOKE.head.hidden, 0], good["fc.weight"][:, 0] / widening.copies)
    assert torch.equal(wide["fc.bias"][: SMOKE.head.hidden], good["fc.bias"])


@pytest.mark.full
def test_prompts_are_sorted_and_never_repeat(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Easy ones have less entropy than hard ones; two draws of one prompt differ in their tag; seeds repeat."""
    path = tmp_path / "prompts.json"
    monkeypatch.setattr(
        sys, "argv", ["prompts", "--sizes", "smoke", "--device", "cpu", "--pair", str(pair), "--out", str(path)]
    )
    prompts.main()
    found = prompts.read_prompts(path)
    assert found.entropy["easy"] < found.entropy["hard"]
    drawn = found.draw("hard", "1")
    first = [tuple(next(drawn)) for _ in range(100)]
    again = found.draw("hard", "1")
    assert first == [tuple(next(again)) for _ in range(100)]
    beginnings = {prompt[: len(found.before) + prompts.TAG_LENGTH] for prompt in first}
    assert len(beginnings) == 100
    assert all(len(prompt) == len(first[0]) for prompt in first)


@pytest.mark.parametrize(
    ("tokens", "window"),
    [
        (6, (8.0, 0.5, 1.6, 0.3, 0.1, 0.6)),  # of the second step 3 of 5 tokens
        (8, (12.0, 0.85, 2.5, 0.3, 0.1, 0.6)),
        (1000, (14.0, 1.0, 3.0, 0.3, 0.1, 0.6)),  # the first of them ends
        (2, (0.0, 0.0, 0.0, 0.3, 0.1, 0.6)),
    ],
)
def test_only_what_is_decoded_by_all_together_counts(tokens: int, window: tuple[float, ...]) -> None:
    """From the first step of all until there is enough, or until one of them ends; steps count in part."""
    steps = [
        *((0.5, 1, 2, 9.0, 7.0), (1.0, 2, 4, 0.1, 0.1), (1.2, 2, 9, 0.4, 0.0), (1.7, 2, 14, 0.2, 0.1)),
        *((2.0, 2, 18, 0.8, 0.3), (2.5, 1, 9, 9.0, 7.0)),
    ]
    load = Decoding(clients=2, tokens=tokens, temperature=0.0, waves=1)
    assert together(np.array(steps, ROW), load) == pytest.approx(window)
    assert together(np.array(steps[:2], ROW), load) == (0,) * 6


def test_figures_from_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ratios stay within a file; the best fixed setting is the one that is hardest to beat."""
    start = {"algorithm": "EAGLE", "gpu": "none", "date": "2026-11-21", "versions": {"sglang": "0.5.17"}}
    sampled = {"k3-rejecting": 200, "tile-rejecting": 300}
    waves = {"tile": [300, 330, 360], "k7": [150, 150]}
    rates = [{"none": 100, "k3": 80, "tile": 102, "tile-useless": 97}, {"k2": 300, "k7": 150, "tile": 330} | sampled]
    for number, found in enumerate(rates):
        load = {"temperature": 0.0, "kind": "mixed", "clients": 64, "round": 0}
        lines = [
            start,
            *(
                {**load, "setting": name, plot_tilespec.RATE: rate, plot_tilespec.WAVES: waves.get(name, [])}
                for name, rate in found.items()
            ),
        ]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = [str(tmp_path / f"{number}.jsonl") for number in range(2)]
    monkeypatch.setattr(sys, "argv", ["plot_tilespec", *files])
    plot_tilespec.main()
    shown = capsys.readouterr().out
    assert "over the best fixed setting, worst load (2 loads) | 1.000 | ≥ 0.98 | yes" in shown
    assert "64 clients up, worst load (2 loads) | 1.000 | ≥ 1.05 | no" in shown
    assert "over k = 3, geometric mean of all loads (1 loads) | 1.275 | ≥ 1.30 | no" in shown
    assert "| EAGLE, mixed, 0.0 | 64 | 1.100 | 1.275 | 1.650 | 2.200 ± 0.100 | 1.020 | 0.970 |" in shown
    assert "| EAGLE with rejection sampling, mixed, 0.0 | 64 | 1.000 |  | 1.500 | 2.000 |  |  |" in shown
    assert "useless draft over no speculation, worst load (1 loads) | 0.970 | ≥ 0.95 | yes" in shown
    assert (tmp_path / "0.png").stat().st_size > 1000

    monkeypatch.setattr(sys, "argv", ["plot_tilespec", *files, "--skip", "1"])
    plot_tilespec.main()  # what has no waves counts as it is
    shown = capsys.readouterr().out
    assert "| EAGLE, mixed, 0.0 | 64 | 1.148 |" in shown
    assert "| 1.722 | 2.296 |" in shown
