"""The values of largest magnitude of chunks of rows: one launch for every chunk that completed in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

PERIOD = 32
"""Rows after which a mask begins anew."""
INDEX_BYTES, VALUE_BYTES = 4, 2


class Chunk(NamedTuple):
    """Positions ``start .. end-1`` of the request in row ``request`` of ``req_to_token``. Never empty.

    Attributes:
        request: its row.
        start: first position.
        end: the one after the last.
        mask: bit i says whether rows i, i+32, i+64, … of the chunk count; at least one of them must.
        values: how many values are wanted, at most as many as the rows that count have.
    """

    request: int
    start: int
    end: int
    mask: int
    values: int


class Workspace:
    """The GPU's memory that one launch after the other works with. All of them must be on the same stream.

    Attributes:
        tickets: ``[n]`` int32, zero before and after each launch.
        candidates: ``[m]`` int32, not initialized.
    """

    def __init__(self) -> None:
        self.tickets = self.candidates = torch.empty(0, dtype=torch.int32)

    def reserve(self, tickets: int, candidates: int, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        """Have room for so many; twice as much as is missing, for the sake of later launches."""
        if len(self.tickets) >= tickets and len(self.candidates) >= candidates:
            return
        with torch.cuda.stream(stream):  # None is none
            if len(self.tickets) < tickets:
                self.tickets = torch.zeros(2 * tickets, dtype=torch.int32, device=device)
            if len(self.candidates) < candidates:
                self.candidates = torch.empty(2 * candidates, dtype=torch.int32, device=device)


def top_rows(
    rows: torch.Tensor,
    req_to_token: torch.Tensor,
    chunks: Sequence[Chunk],
    topk: int,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Find each chunk's values of largest magnitude, as bfloat16; NaN is larger than all.

    Runs the Triton kernel on a GPU and `top_rows_torch` elsewhere.

    Args:
        rows: ``[slots, H]`` bfloat16, float16 or float32, contiguous.
        req_to_token: ``[requests, context]`` int32, KV slot of each position of each request.
        chunks: where to look.
        topk: room for values, at least ``values`` of each chunk.
        workspace: kept for the next call with this stream; None makes one.
        stream: where the kernel runs; None is the current one.

    Returns:
        ``[len(chunks), topk * 6]`` bytes on the host: of each chunk the places (row in the chunk times H plus column,
        uint32) of its values, then their bits (bfloat16), in any order; what follows ``values`` is zero. Of rows on a
        GPU it is pinned memory, which the kernel itself fills: it is complete once the stream got there. Keep it until
        then.
    """
    if rows.is_cuda:
        from tessera_kernels.triton.rows.top_rows import top_rows_triton

        return top_rows_triton(rows, req_to_token, chunks, topk, workspace, stream)
    return top_rows_torch(rows, req_to_token, chunks, topk)


def top_rows_torch(rows: torch.Tensor, req_to_token: torch.Tensor, chunks: Sequence[Chunk], topk: int) -> torch.Tensor:
    """The torch twin of the Triton kernel, complete at once. Among values of equal magnitude it may choose others."""
    out = torch.zeros((len(chunks), topk * (INDEX_BYTES + VALUE_BYTES)), dtype=torch.uint8)
    for i, (request, start, end, mask, values) in enumerate(chunks):
        chunk = rows[req_to_token[request, start:end].long()].bfloat16()
        magnitudes = chunk.abs()
        magnitudes[~_counts(mask, end - start).to(rows.device)] = -1
        places = magnitudes.flatten().topk(values).indices
        bits = chunk.flatten()[places]
        out[i, : values * INDEX_BYTES] = places.to(torch.int32).view(torch.uint8).cpu()
        out[i, topk * INDEX_BYTES :][: values * VALUE_BYTES] = bits.view(torch.uint8).cpu()
    return out


def _counts(mask: int, rows: int) -> torch.Tensor:
    """``[rows]``: whether each row counts."""
    turn = torch.tensor([bool(mask >> i & 1) for i in range(PERIOD)])
    return turn.repeat(-(-rows // PERIOD))[:rows]
