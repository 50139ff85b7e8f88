"""What a step of TileSpec costs the scheduler's thread: 64 requests, 7 drafts each, 40 tiers; no model, no server.

    python -m tilespec.time_policy --out time-policy.jsonl

Launches are timed until the call returns, with nothing else under way; without a GPU the kernels' references run, and
their times mean nothing. Means count: only one decision in `SEARCH_INTERVAL` looks at all options, and the calibration
is fitted every `FIT_INTERVAL` steps. The line "all" is the sum over what a step of ragged chains does. Some of that is
in the place of what SGLang would do: three such pieces are timed SGLang's way as well, in turn with ours, and the line
"added" is the sum without them; of others, some twenty launches, nothing is subtracted. The last line is the choice
where a prefill has another request join before every step.

In a loop caches are warm, which they are not between the steps of a server: `time_launches.py` measures those.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch

from provenance import note, provenance, show
from tessera.tilespec.calibration import Calibration, bin_edges
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.decider import Decider
from tessera.tilespec.scores import Scores
from tessera_kernels.ops.accept.accept_chains import AcceptedChains, accept_chains
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows, pack_verify
from tessera_kernels.ops.verify.scatter_verify import scatter_verify
from tessera_testing.attention import arguments, extending
from tessera_testing.verified import VerifiedChains

STEPS = (0, 1, 2, 3, 5, 7)
BS, DEPTH, TOKENS, HIDDEN, LONGEST, VOCABULARY = 64, 7, 256, 4096, 8192, 128_256
DRAFTED_VOCABULARY = 32_000
CONTEXT = 300
"""Cached tokens of each request, in all of which offsets are written."""
WARM_UP, TIMES = 64, 512

CHOOSE = "take in what has arrived, and choose"
ACCEPT, OFFSETS, FIRST = "accept", "offsets of a draft-extend", "first tokens of the next drafts"

Calls = dict[str, Callable[[], object]]


def cost_table() -> CostTable:
    """A profile of 40 tiers."""
    by_batch = {s: Curve([1, 64], [4e-3, 4e-3 + 5e-4 * s]) for s in STEPS}
    return CostTable(
        tiers=Curve(range(16, 656, 16), np.linspace(4e-3, 14e-3, 40).tolist()),
        uniform={s + 1: curve for s, curve in by_batch.items()},
        draft={s: curve for s, curve in by_batch.items() if s},
        extend={s + 1: curve for s, curve in by_batch.items()},
        kv_seconds=dict.fromkeys(STEPS, 1e-9),
        host_seconds=1e-4,
        batch_sizes=[1, 2, 4, 8, 16, 32, 64],
    )


def parts_of_a_step(device: str, *, joining: bool = False) -> Calls:
    """What a step that verifies a part does beside SGLang's own work, in order; requests join before each or never."""
    known = Calibration(DEPTH), Calibration(DEPTH)
    table = torch.from_numpy(known[0].logits())
    scores = Scores(BS, DEPTH, device, AcceptanceModel.create(torch.from_numpy(bin_edges()), table, BS, device))
    decider = Decider(cost_table(), scores, known, device)
    requests = torch.arange(BS, device=device)
    plan = scores.allocate(BS, DEPTH, requests, TOKENS)
    rows = BS * (DEPTH + 1)

    def ints(size: int) -> VerifyRows:
        return VerifyRows(*(torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3)))

    padded, packed = ints(rows), ints(TOKENS)
    slots = KVSlots(torch.zeros((BS, LONGEST), dtype=torch.int32, device=device), requests, requests)
    states = torch.zeros((TOKENS, HIDDEN), dtype=torch.bfloat16, device=device)
    spread = states.new_empty((rows, HIDDEN))
    logits = torch.zeros((TOKENS, VOCABULARY if device == "cuda" else HIDDEN), device=device)
    last = first_logits(device)
    shape = BS, DEPTH + 1, logits.device
    chains = torch.zeros(shape[:2], dtype=torch.int64, device=device)

    def accept() -> None:  # all, so that the longest drafts are chosen
        observation = scores.observation(BS, DEPTH, requests)
        accept_chains(logits, plan.qo_indptr, chains, None, AcceptedChains.create(*shape), observation)

    def choose() -> None:
        if joining:
            decider.on_prefill(1)
        decider.choose(BS, 100_000)

    return {
        CHOOSE: choose,
        "allocate": lambda: scores.allocate(BS, DEPTH, requests, TOKENS),
        "pack": lambda: pack_verify(padded, slots, plan.qo_indptr, packed),
        "spread the hidden states": lambda: scatter_verify(states, plan.qo_indptr, BS, spread, 0),
        ACCEPT: accept,
        **({OFFSETS: extend_offsets(device, ours=True)} if device == "cuda" else {}),
        FIRST: lambda: scores.argmax_with_confidence(last),
        "send the histogram": lambda: decider.on_verify(DEPTH),
    }


def first_logits(device: str) -> torch.Tensor:
    """Of a draft-extend's last accepted rows."""
    return torch.zeros((BS, DRAFTED_VOCABULARY), dtype=torch.bfloat16, device=device)


def extend_offsets(device: str, *, ours: bool) -> Callable[[], object]:
    """What fills the offsets of a draft-extend's graph, our way or SGLang's."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from tessera_patches.tilespec.extend.offsets import LastQueryTriton

    kind = LastQueryTriton if ours else TritonAttnBackend
    table = torch.zeros((BS, LONGEST), dtype=torch.int32, device=device)
    backend = extending(kind, table, BS, DEPTH + 1)
    widths = torch.full((BS,), DEPTH + 1, dtype=torch.int32, device=device)
    drafts = SimpleNamespace(extend_seq_lens_tensor=widths, num_accept_tokens=widths)
    requests, lens = torch.arange(BS, device=device), torch.full((BS,), CONTEXT, device=device)
    mode = ForwardMode.DRAFT_EXTEND_V2
    method = TritonAttnBackend._update_draft_extend_buffers  # noqa: SLF001
    batch = arguments(method, bs=BS, seq_lens=lens, req_pool_indices=requests, forward_mode=mode, spec_info=drafts)
    in_order = list(batch.values())
    return lambda: backend._update_draft_extend_buffers(*in_order)  # noqa: SLF001


def sglangs_parts(device: str) -> Calls:
    """SGLang's way, where it is timed; its acceptance reads all logits. Only on a GPU."""
    if device != "cuda":
        return {}
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton, top_p_renorm_probs_triton

    chains = VerifiedChains(BS, DEPTH + 1, (top_k_renorm_probs_triton, top_p_renorm_probs_triton), steep=True)
    last = first_logits(device)
    return {
        ACCEPT: lambda: chains.sglangs("greedy"),
        OFFSETS: extend_offsets(device, ours=False),
        FIRST: lambda: torch.argmax(last, dim=-1, keepdim=True),
    }


def measure(several: Sequence[Calls], wait: Callable[[], None]) -> list[dict[str, npt.NDArray[np.float64]]]:
    """Microseconds of each part in each of `TIMES` steps, on this thread, of several sorts of steps in turn.

    Nothing else is under way.
    """
    times: list[dict[str, list[float]]] = [{what: [] for what in parts} for parts in several]
    for _ in range(WARM_UP + TIMES):
        for parts, taken in zip(several, times, strict=True):
            wait()
            for what, call in parts.items():
                start = time.perf_counter()
                call()
                taken[what].append((time.perf_counter() - start) * 1e6)
    return [{what: np.array(one[WARM_UP:]) for what, one in taken.items()} for taken in times]


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    ours, others = measure([parts_of_a_step(device), sglangs_parts(device)], wait)
    total = np.sum([*ours.values()], axis=0)
    lines = ours | {"all of a step of ragged chains": total}
    if others:
        lines |= {f"SGLang's: {what}": times for what, times in others.items()}
        lines["added"] = total - np.sum([*others.values()], axis=0)
    lines["choose where one joins"] = measure([parts_of_a_step(device, joining=True)], wait)[0][CHOOSE]
    with options.out.open("w", encoding="utf-8") as out:
        note(provenance() | {"requests": BS, "drafts": DEPTH, "tokens": TOKENS, "steps": TIMES}, out)
        for what, times in lines.items():
            show({"what": what, "mean_us": round(times.mean(), 1), "median_us": round(np.median(times), 1)}, out)


if __name__ == "__main__":
    main()
