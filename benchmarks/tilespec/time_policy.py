"""What a step of TileSpec costs the scheduler's thread: 64 requests, 7 drafts each, 40 tiers; no model, no server.

    python -m tilespec.time_policy --out time-policy.jsonl

The decision needs no GPU. What is launched is timed until the call returns, with nothing else under way; without a GPU
the kernels' torch twins run, and their times mean nothing. The last line is the sum over what a step of ragged chains
does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from provenance import note, provenance, tell
from tessera.tilespec.calibration import Calibration, edges
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.gain import Survivals
from tessera.tilespec.mailbox import Mailbox
from tessera.tilespec.policy import Policy
from tessera.tilespec.scores import Scores
from tessera_kernels.acceptance_model import AcceptanceModel
from tessera_kernels.histogram import HISTOGRAM_BINS
from tessera_kernels.pack_verify import VerifyRows, pack_verify
from tessera_kernels.scatter_verify import scatter_verify

STEPS = (0, 1, 2, 3, 5, 7)
BS, DEPTH, TOKENS, HIDDEN = 64, 7, 256, 4096
TIMES = 300

Calls = dict[str, Callable[[], object]]


def decisions() -> Calls:
    """What numpy does."""
    by_batch = {s: Curve([1, 64], [4e-3, 4e-3 + 5e-4 * s]) for s in STEPS}
    costs = CostTable(
        tiers=Curve(range(16, 656, 16), np.linspace(4e-3, 14e-3, 40).tolist()),
        slots=None,
        uniform={s + 1: curve for s, curve in by_batch.items()},
        draft={s: curve for s, curve in by_batch.items() if s},
        extend={s + 1: curve for s, curve in by_batch.items()},
        kv_seconds=dict.fromkeys(STEPS, 1e-9),
        host_seconds=1e-4,
        batch_sizes=[1, 2, 4, 8, 16, 32, 64],
    )
    policy = Policy(costs, Survivals(DEPTH, STEPS, np.full(DEPTH, 0.7)))
    survival = np.random.default_rng(0).beta(2, 1, (BS, DEPTH)).cumprod(1)
    histogram = np.zeros((2, DEPTH, HISTOGRAM_BINS), np.int32)
    places = np.broadcast_to(np.arange(DEPTH), survival.shape), (survival * HISTOGRAM_BINS).astype(int)
    np.add.at(histogram[0], places, 1)
    np.add.at(histogram[1], places, (survival * 2**20).astype(int))
    return {
        "choose": lambda: policy.choose(BS, 100_000),
        "take in a histogram": lambda: policy.survivals.update(histogram, DEPTH),
    }


def launches(device: str) -> Calls:
    """What is launched beside SGLang's own work, in a step that verifies a part."""
    table = torch.from_numpy(Calibration(DEPTH).logits())
    scores = Scores(BS, DEPTH, device, AcceptanceModel.create(torch.from_numpy(edges()), table, BS, device))
    requests = torch.arange(BS, device=device)
    accepted = torch.ones(BS, dtype=torch.int32, device=device)
    plan = scores.allocate(BS, DEPTH, requests, TOKENS)
    rows = BS * (DEPTH + 1)

    def ints(size: int) -> VerifyRows:
        return VerifyRows(*(torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3)))

    dense, packed = ints(rows), ints(TOKENS)
    states = torch.zeros((TOKENS, HIDDEN), dtype=torch.bfloat16, device=device)
    spread, ids = states.new_empty((rows, HIDDEN)), dense.tokens.clone()
    mailbox: Mailbox[int] = Mailbox()

    def post() -> None:
        mailbox.send(plan.histogram, DEPTH)
        mailbox.receive()

    return {
        "allocate": lambda: scores.allocate(BS, DEPTH, requests, TOKENS),
        "pack": lambda: pack_verify(dense, plan.qo_indptr, BS, packed),
        "spread the predicted tokens": lambda: scatter_verify(packed.tokens, plan.qo_indptr, BS, ids, -1),
        "spread the hidden states": lambda: scatter_verify(states, plan.qo_indptr, BS, spread, 0),
        "observe": lambda: scores.observe(BS, DEPTH, requests, plan, accepted),
        "send the histogram, receive one": post,
    }


def median(call: Callable[[], object], wait: Callable[[], None]) -> float:
    """Median microseconds of a call on this thread."""
    seconds = []
    for _ in range(TIMES):
        wait()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)) * 1e6


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    total = 0.0
    with options.out.open("w", encoding="utf-8") as out:
        note(provenance() | {"requests": BS, "drafts": DEPTH, "tokens": TOKENS}, out)
        for what, call in (decisions() | launches(device)).items():
            found: dict[str, Any] = {"what": what, "microseconds": round(median(call, wait), 1)}
            total += found["microseconds"]
            tell(found, out)
        tell({"what": "all of a step of ragged chains", "microseconds": round(total, 1)}, out)


if __name__ == "__main__":
    main()
