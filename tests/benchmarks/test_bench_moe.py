"""The bench of MoE runners: what it says of a start that failed, what it does not repeat, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench_moe
import moe_shape
import plot_moe

STARTED: dict[str, Any] = {
    "backend": "triton",
    "server_args": ["--load-format", "dummy"],
    "provenance": {"gpu": "some GPU", "date": "2026-11-21"},
    "throughput": [{"load": "128 in", "stock": 10.0, "idle": [1.0, 0.98, 1.02], "embed": [0.99, 0.9, 1.01]}],
    "rows": {
        "reference": "triton",
        "to_reference": {"least": 1.0, "median": 1.0},
        "to_itself_in_a_batch": {"least": 0.999, "median": 1.0},
    },
    "fingerprints": {
        "triton": {"thresholds": {"mant_err_mean": 1.5}, "passed": 11, "passed_by_the_paper": 12, "of": 12}
    },
}
FAILED = STARTED | {"backend": "aiter", "failed": "stock, at start", "reason": "ImportError: a | b"}
for part in ("throughput", "rows", "fingerprints"):
    del FAILED[part]


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
        ("last line\n\n", "last line"),
        ("", "an empty log"),
    ],
)
def test_reason(log: str, said: str) -> None:
    """The error and not what was logged after it."""
    assert bench_moe.reason(log) == said


def test_what_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was cut off goes on where it was."""
    out = tmp_path / "moe.jsonl"
    out.write_text(json.dumps(STARTED) + "\n")
    asked = []

    def measured(backend: str, _: object) -> dict[str, Any]:
        asked.append(backend)
        return FAILED | {"backend": backend}

    monkeypatch.setattr(bench_moe, "measured", measured)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the test keeps its own
    names = ["triton", "aiter", "cutlass"]
    monkeypatch.setattr("sys.argv", ["bench_moe", "--model", str(tmp_path), "--out", str(out), "--backends", *names])
    bench_moe.main()
    bench_moe.main()
    assert asked == ["aiter", "cutlass"]
    assert out.with_suffix(".md").is_file()
    assert out.with_suffix(".png").is_file()
    assert [record["backend"] for record in plot_moe.records(out)] == names


def test_table_and_picture(tmp_path: Path) -> None:
    """Figures of those that started, the reason of the other, pairs of fingerprints."""
    text = "\n".join(plot_moe.lines([STARTED, FAILED]))
    assert "| `triton` | 128 in | 1.000 (0.980 to 1.020) | 0.990 (0.900 to 1.010) | 1.000000 (in a batch 0.999" in text
    assert "| `aiter` | failed (stock, at start): ImportError: a \\| b |" in text
    assert "| `triton` | `triton` | 11 of 12 | 12 of 12 | 1.50 |" in text
    plot_moe.plot([STARTED], tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_shape_is_the_real_ones(tmp_path: Path) -> None:
    """30.5 billion parameters in 48 layers, by Hugging Face's own count."""
    from in_process import parameters

    moe_shape.make(tmp_path, 48)
    assert parameters(tmp_path) == pytest.approx(30.53e9, rel=0.001)
    moe_shape.make(tmp_path / "draft", 48, draft=True)
    assert 0.3e9 < parameters(tmp_path / "draft") < 0.4e9
