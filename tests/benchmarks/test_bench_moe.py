"""The bench of MoE runners: what it says of a start that failed, what it does not repeat, and its table."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import bench_moe
import moe_shape
import plot_moe
import random_weights
import rig
from load import Load
from tessera_testing.waiting import wait_until

COMMON: dict[str, Any] = {
    "server_args": ["--load-format", "dummy"],
    "model": {"num_hidden_layers": 8},
    "provenance": {"gpu": "some GPU", "date": "2026-11-21"},
}
AGREEMENT: dict[str, Any] = {
    "in_a_batch": {"least": 0.999, "median": 1.0},
    "fingerprints": {
        "triton": {"thresholds": {"mant_err_mean": 1.5}, "passed": 11, "passed_by_the_paper": 12, "of": 12}
    },
}
THROUGHPUT: dict[str, Any] = {
    "throughput": [{"load": "128 in", "stock": 10.0, "idle": [1.0, 0.98, 1.02], "embed": [0.99, 0.9, 1.01]}],
}
FAILED = {"failed": "stock, at start", "reason": "ImportError: a | b"}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("[2026-11-21 10:00:00] Load\nAssertionError: needs SM100\n[2026] Killed", "AssertionError: needs SM100"),
        ("[a] ValueError: one\n[a] tessera: refusing to start: x", "tessera: refusing to start: x"),
        (
            "a\nlaunch_server.py: error: argument --moe: invalid choice",
            "launch_server.py: error: argument --moe: invalid choice",
        ),
        ("x.y.MyError: one\n  File z\ntorch.OutOfMemoryError: CUDA\n", "torch.OutOfMemoryError: CUDA"),
        (
            "AssertionError: Invalid quantization 'None'. \nX supports only: 'y'.\n\n[z]",
            "AssertionError: Invalid quantization 'None'. X supports only: 'y'.",
        ),
        ("last line\n\n", "last line"),
        ("", "an empty log"),
    ],
)
def test_reason(log: str, said: str) -> None:
    """The error and not what was logged after it."""
    assert bench_moe.reason(log) == said


def test_what_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was cut off goes on where it was; runners that fail or have the bits of another are not timed."""
    out = tmp_path / "moe.jsonl"
    (tmp_path / "config.json").write_text("{}")
    values = {"triton": 1.0, "cutlass": 1.0, "deep_gemm": 1.01}
    requested: list[str] = []
    timed: list[str] = []
    broken = True

    def agreement(backend: str, _fleet: object, _options: object, folder: Path) -> dict[str, Any]:
        requested.append(backend)
        if backend == "deep_gemm" and broken:
            wait_until(out.exists)
            raise KeyboardInterrupt
        if backend not in values:
            return FAILED
        np.save(folder / f"{backend}-rows.npy", np.array([[1.0, values[backend]], [0.0, 1.0]]))
        return AGREEMENT

    def compare(backends: list[str], _options: object, _folder: Path, add: bench_moe.Add) -> None:
        timed.extend(backends)
        for backend in backends:
            add(backend, THROUGHPUT)

    monkeypatch.setattr(bench_moe, "_agreement", agreement)
    monkeypatch.setattr(bench_moe, "compare", compare)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the test keeps its own
    names = ["aiter", "cutlass", "triton", "deep_gemm"]
    common = ["--model", str(tmp_path), "--out", str(out), "--at-once", "1"]
    monkeypatch.setattr("sys.argv", ["bench_moe", *common, "--backends", *names])
    with pytest.raises(KeyboardInterrupt):
        bench_moe.main()
    assert timed == []
    assert [record["backend"] for record in plot_moe.records(out)] == ["triton"]
    broken = False
    bench_moe.main()
    before = list(requested)
    assert (before.count("triton"), before.count("deep_gemm")) == (1, 2)
    bench_moe.main()
    assert requested == before
    assert timed == ["triton", "deep_gemm"]
    found = {record["backend"]: record for record in plot_moe.records(out)}
    assert list(found) == ["triton", "aiter", "cutlass", "deep_gemm"]
    assert (found["aiter"]["failed"], found["cutlass"]["rows"]["bits_of"]) == ("stock, at start", "triton")
    assert found["deep_gemm"]["rows"]["to_reference"]["least"] == pytest.approx(1.0, abs=1e-4)
    assert out.with_suffix(".png").is_file()
    page = out.with_suffix(".md").read_text()
    assert "| `cutlass` | the very bits of `triton`, so its kernels | | | 1.000000 (in a batch 0.999000) |" in page
    assert "beyond noise" not in page
    values["aiter"], names[:] = 1.2, ["triton", "aiter"]
    out.unlink()
    monkeypatch.setattr("sys.argv", ["bench_moe", *common, "--backends", *names])
    with pytest.raises(SystemExit, match=r"beyond 0\.001: aiter"):
        bench_moe.main()
    assert "(in a batch 0.999000) **beyond noise** |" in out.with_suffix(".md").read_text()


def test_table_and_picture(tmp_path: Path) -> None:
    """Figures of those that started, the reason of the other, pairs of fingerprints."""
    rows = {"rows": {"reference": "triton", "to_reference": {"least": 1.0, "median": 1.0}, "bits_of": None}}
    started = {"backend": "triton"} | COMMON | AGREEMENT | THROUGHPUT | rows
    text = "\n".join(plot_moe.lines([started, {"backend": "aiter"} | COMMON | FAILED]))
    assert "some GPU, 2026-11-21, 8 layers, --load-format dummy" in text
    assert "| `triton` | 128 in | 1.000 (0.980 to 1.020) | 0.990 (0.900 to 1.010) | 1.000000 (in a batch 0.999" in text
    assert "| `aiter` | failed (stock, at start): ImportError: a \\| b |" in text
    assert "| `triton` | `triton` | 11 of 12 | 12 of 12 | 1.50 |" in text
    plot_moe.plot([started], tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_no_server_outlives_its_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is starting when the others are ended, nor one that comes too late."""
    monkeypatch.setattr(rig, "STAGGER_SECONDS", 0.1)
    servers = [rig.new_server("stock", tmp_path, [], tmp_path / f"{i}.log") for i in range(2)]
    with rig.Fleet() as fleet:
        fleet.start(servers[0])
        assert servers[0].exit_code is None
    assert servers[0].exit_code is not None
    with pytest.raises(rig.FleetEndedError), fleet.serving(servers[1], 1.0):
        pass
    with pytest.raises(RuntimeError, match="not started"):
        _ = servers[1].pid


def test_all_runners_are_measured_unless_some_are_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference first, also where the command line has another order."""
    common = ["bench_moe", "--model", "m", "--out", "o"]
    monkeypatch.setattr(sys, "argv", common)
    every = bench_moe._options().backends
    assert every[0] == "triton"
    assert len(every) > 10
    monkeypatch.setattr(sys, "argv", [*common, "--backends", "cutlass", "triton"])
    assert bench_moe._options().backends == ["triton", "cutlass"]


def test_the_shape_is_the_real_ones(tmp_path: Path) -> None:
    """30.5 billion parameters in 48 layers, by Hugging Face's own count; the weights that are written are these."""
    from in_process import parameters

    for folder, layers, draft in ((tmp_path, 48, False), (tmp_path / "draft", 2, True)):
        config = moe_shape.make(folder, layers, draft=draft)
        sizes = [size for shard in random_weights.shard_sizes(config) for size in shard.values()]
        assert parameters(folder) == sum(map(math.prod, sizes))
    assert parameters(tmp_path) == pytest.approx(30.53e9, rel=0.001)
    assert 0.3e9 < parameters(tmp_path / "draft") < 0.4e9


SMALL = {"vocab_size": 1024, "hidden_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 2, "num_experts": 8}


def test_random_weights_are_a_models(tmp_path: Path) -> None:
    """Hugging Face finds each under its name; states neither vanish nor grow, and each token has experts of its own."""
    config = moe_shape.make(tmp_path, 2) | SMALL | {"num_attention_heads": 4, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    random_weights.write(tmp_path, config, "cpu")
    model, found = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(found[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = torch.randint(8, 1000, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = model(tokens, output_router_logits=True, output_hidden_states=True)
    assert 0.5 < out.hidden_states[-2].std() < 4.0
    chosen = out.router_logits[-1].topk(2).indices.sort().values
    assert len({tuple(row) for row in chosen.tolist()}) > 10


def test_fp8_weights_are_the_same_ones_rounded(tmp_path: Path) -> None:
    """By blocks of 128 x 128; embeddings, norms and routers stay bfloat16."""
    for name, extra in (("bfloat16", {}), ("fp8", {"quantization_config": moe_shape.FP8})):
        config = moe_shape.make(tmp_path / name, 2) | SMALL | extra
        random_weights.write(tmp_path / name, config, "cpu")
    plain, rounded = (load_file(tmp_path / name / "model-00001.safetensors") for name in ("bfloat16", "fp8"))
    weight = "model.layers.0.mlp.experts.3.down_proj.weight"
    scale = rounded[f"{weight}_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert scale.shape == plain[weight].shape == (256, 128)
    torch.testing.assert_close(rounded[weight].float() * scale, plain[weight].float(), rtol=0.07, atol=1e-3)
    unquantized = {name for name, tensor in rounded.items() if tensor.dtype == torch.bfloat16}
    assert unquantized == {name for name in plain if "norm" in name or "mlp.gate." in name}


def _times(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[int]:
    """Have warm-ups take so long, the last of them for ever; returns the seeds that they will have had."""
    seeds: list[int] = []

    def warm_up(_: object, __: object, seed: int) -> float:
        seeds.append(seed)
        return seconds[min(len(seeds), len(seconds)) - 1]

    monkeypatch.setattr(bench_moe, "warm_up", warm_up)
    return seeds


def test_warm_ups_end_when_requests_take_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow one begins the count anew, and no prompt comes twice."""
    seeds = _times(monkeypatch, [5.0, 1.1, 1.0, 3.0, 1.0, 1.1])
    assert bench_moe.steady({}, Load(128, 128, 32, 3.0)) == 1.1
    assert len(seeds) == len(set(seeds)) == 4 + bench_moe.WARM_UPS


def test_a_server_that_never_settles_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not measured."""
    seeds = _times(monkeypatch, [1.0, *(2.0 for _ in range(bench_moe.MOST_WARM_UPS))])
    with pytest.raises(RuntimeError, match="requests take"):
        bench_moe.steady({}, Load(128, 128, 32, 3.0))
    assert len(seeds) == bench_moe.MOST_WARM_UPS
