"""Traces: what was recorded is what is replayed, and a trace cannot grow without end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tessera.cli import main
from tessera.tilespec import trace as traces
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.gain import Survivals
from tessera.tilespec.policy import Policy
from tessera.tilespec.replay import replay
from tessera.tilespec.trace import HistogramUpdate, MeanUpdate, Record, Trace, TraceWriter
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT

STEPS = [0, 1, 3]
COSTS = CostTable(
    tiers=Curve([8, 16, 24, 32], [1.0, 1.1, 1.6, 1.8]),
    uniform={s + 1: Curve([8], [1.0 + 0.3 * s]) for s in STEPS},
    draft={s: Curve([8], [0.05 * s]) for s in STEPS if s},
    extend={s + 1: Curve([8], [0.02]) for s in STEPS},
    kv_seconds=dict.fromkeys(STEPS, 1e-6),
    host_seconds=0.01,
    batch_sizes=[8],
)
MEAN, ACCEPTED_RATIO = np.full(3, 0.7), np.array([1.0, 0.9, 0.8])


def record_a_run(file: Path, steps: int) -> Policy:
    """A policy at work on random drafts, with a trace."""
    rng = np.random.default_rng(3)
    policy = Policy(COSTS, Survivals(3, STEPS, MEAN, ACCEPTED_RATIO))
    with TraceWriter(file, COSTS, [(MEAN, ACCEPTED_RATIO)] * 2) as writer:
        seen: list[HistogramUpdate] = []
        for step in range(steps):
            means = [MeanUpdate([0.9, 0.8, 0.7], [1.0, 1.1, 0.9])] if step == 20 else []
            for mean in means:
                policy.survivals.set_prior(np.array(mean.values), np.array(mean.accepted_ratio))
            new_requests = 3 if step % 10 == 0 else 0
            policy.add_new_requests(new_requests)
            choice = policy.choose(8, 1000 * step)
            measured = choice.profiled * 1.1
            disturbed = new_requests > 0
            writer.write(
                Record(8, 1000 * step, choice, seen, means, int(choice.gain), measured, new_requests, disturbed)
            )
            policy.observe(choice, measured, disturbed=disturbed)
            seen = []
            if choice.steps:
                histogram = np.zeros((2, 3, HISTOGRAM_BINS), np.int32)
                for p in rng.random((8, choice.steps)).cumprod(1):
                    cells = np.arange(choice.steps), (p * HISTOGRAM_BINS).astype(int)
                    np.add.at(histogram[0], cells, 1)
                    np.add.at(histogram[1], cells, (p / HISTOGRAM_UNIT).astype(int))
                seen = [HistogramUpdate.of(histogram, choice.steps)]
                policy.survivals.update(histogram, choice.steps)
    return policy


def test_the_policy_chooses_again_what_it_chose(tmp_path: Path) -> None:
    """Nothing that it decides by is missing in a trace; explorations come at the same steps."""
    file = tmp_path / "trace.jsonl"
    record_a_run(file, 300)
    result = replay(Trace(file))
    outcomes = {outcome.name: outcome for outcome in result.outcomes}
    again, recorded = outcomes["tilespec"], outcomes["recorded"]
    assert result.records == 300
    assert again.steps == recorded.steps
    assert len(again.steps) > 1
    assert again.tokens == pytest.approx(recorded.tokens)
    assert again.seconds == pytest.approx(recorded.seconds)
    assert set(outcomes) == {
        "no speculation",
        "static k=1",
        "static k=3",
        "best uniform",
        "tilespec",
        "recorded",
    }
    assert len({round(outcome.tokens, 6) for outcome in result.outcomes}) == 1  # each takes its time for the same
    assert outcomes["best uniform"].goodput >= max(outcomes[f"static k={k}"].goodput for k in (1, 3))
    assert outcomes["static k=3"].verified == 300 * 32
    met = result.agreement
    assert met.measured_seconds == pytest.approx(met.profiled_seconds * 1.1)
    assert met.profiled_off == pytest.approx(met.profiled_seconds * 0.1)
    assert met.measured_seconds == pytest.approx(met.expected_seconds, rel=0.05)
    assert 0 < met.expected_off < met.profiled_off / 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with a line for each policy; what is no trace is one line that says so."""
    file = tmp_path / "trace.jsonl"
    record_a_run(file, 30)
    assert main(["tilespec", "replay", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("30 steps\n")
    assert [line.split("  ")[0] for line in printed.splitlines()[2:8]] == [
        "no speculation",
        "static k=1",
        "static k=3",
        "best uniform",
        "tilespec",
        "recorded",
    ]
    assert main(["tilespec", "replay", str(file), "--requests", "8"]) == 0
    assert capsys.readouterr().out.splitlines()[:8] == printed.splitlines()[:8]
    assert main(["tilespec", "replay", str(file), "--requests", "7"]) == 1
    assert "has no step of 7 requests" in capsys.readouterr().err
    assert re.search(r"profile: \d+\.\d+ s, a step is off by 9\.1% of its time", printed)
    header, first, *_ = file.read_text().splitlines()
    broken = json.loads(first)
    for content in (
        "",
        "[]",
        "{",
        header + "\n[]\n",
        header + "\n" + json.dumps({**broken, "means": [1]}) + "\n",
        header + "\n" + json.dumps({**broken, "histograms": {"bs": 1, "drafted": 1, "cells": [[9, 9, 9, 9]]}}) + "\n",
        header + "\n" + json.dumps({**broken, "kv_tokens": "many"}) + "\n",
        header + "\n" + json.dumps({**broken, "histograms": [{"drafted": 1000, "cells": [[0, 0, 9, 9]]}]}) + "\n",
        header + "\n" + json.dumps({**broken, "histograms": [{"drafted": 0, "cells": [[0, 0, 9, 9]]}]}) + "\n",
        header + "\n" + json.dumps({**broken, "means": [{"values": [1e9] * 3, "accepted_ratio": [1] * 3}]}) + "\n",
        header
        + "\n"
        + json.dumps({**broken, "means": [{"values": [float("nan")] * 3, "accepted_ratio": [1] * 3}]})
        + "\n",
    ):
        file.write_text(content)
        assert main(["tilespec", "replay", str(file)]) == 1
        assert "cannot be replayed" in capsys.readouterr().err
    assert main(["tilespec", "replay", str(tmp_path / "none")]) == 1


def test_a_trace_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with a line that says so, and is read up to there; a last line that was cut off is left out."""
    file = tmp_path / "trace.jsonl"
    monkeypatch.setattr(traces, "MAX_TRACE_BYTES", 20_000)
    record_a_run(file, 300)
    assert file.stat().st_size < 21_000
    assert json.loads(file.read_text().splitlines()[-1]) == {"end": "the trace is full"}
    count = replay(Trace(file)).records
    assert 5 < count < 300
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1])[:-5])
    assert replay(Trace(file)).records == count - 1


def test_a_line_that_never_ends_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded too."""
    monkeypatch.setattr(traces, "MAX_TRACE_LINE", 100)
    file = tmp_path / "trace.jsonl"
    file.write_text("[" * 1000)
    with pytest.raises(ValueError, match=r"more than 100 characters"):
        Trace(file)
