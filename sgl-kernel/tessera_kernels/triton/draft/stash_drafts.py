"""The Triton kernel of `tessera_kernels.ops.draft.stash_drafts`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.draft.stash_drafts import DraftRows
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

MAX_COLUMNS = 1024


@Launcher
@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _stash_kernel(  # type: ignore[no-untyped-def]
    requests,
    tokens,
    probabilities,
    drafted,
    states,
    tokens_out,
    probabilities_out,
    drafted_out,
    states_out,
    rows,
    TOPK: tl.constexpr,
    CHOICES: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (b, c) writes columns ``c * TILE ..`` of the states of request b; with c = 0 the rest of its row too."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    request = tl.load(requests + row)
    if (request >= 0) & (request < rows):
        if tile == 0:
            tl.store(tokens_out + request, tl.load(tokens + row).to(tl.int64))
            choice = tl.arange(0, CHOICES)
            known = choice < TOPK
            source, target = row * TOPK + choice, request * TOPK + choice
            tl.store(probabilities_out + target, tl.load(probabilities + source, mask=known), mask=known)
            tl.store(drafted_out + target, tl.load(drafted + source, mask=known), mask=known)
        if COLUMNS > 0:
            column = tile * TILE + tl.arange(0, TILE)
            inside = column < COLUMNS
            value = tl.load(states + row * COLUMNS + column, mask=inside)
            tl.store(states_out + request * COLUMNS + column, value, mask=inside)


def stash_drafts_triton(drafts: DraftRows, requests: torch.Tensor, pool: DraftRows) -> None:
    """See `tessera_kernels.ops.draft.stash_drafts`. One launch."""
    topk = drafts.drafted.shape[1]
    if drafts.states is None or pool.states is None:
        states, states_out, columns = drafts.probabilities, pool.probabilities, 0  # not read
    else:
        states, states_out, columns = drafts.states, pool.states, drafts.states.shape[1]
    tile = min(power_of_2(max(columns, 1)), MAX_COLUMNS)
    _stash_kernel(
        (requests.shape[0], max(-(-columns // tile), 1), 1),
        (requests, *drafts[:3], states, *pool[:3], states_out),
        (pool.tokens.shape[0],),
        (topk, power_of_2(topk), columns, tile),
    )
