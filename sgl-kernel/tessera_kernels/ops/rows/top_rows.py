"""The values of largest magnitude of chunks of rows, in one launch for all chunks that were completed in a step."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tessera_kernels.registry import op

MASK_BITS = 32
"""Rows after which a mask repeats."""
INDEX_BYTES, VALUE_BYTES = 4, 2


class Chunk(NamedTuple):
    """Positions ``start .. end-1`` of the request in row ``request`` of ``req_to_token``. Never empty.

    Attributes:
        request: its row.
        start: first position.
        end: the one after the last.
        mask: bit i selects rows i, i+32, i+64, … of the chunk; at least one row is selected.
        values: how many values to find, at most those of the selected rows.
    """

    request: int
    start: int
    end: int
    mask: int
    values: int


class Workspace:
    """GPU memory that successive launches reuse. All of them must be on the same stream.

    Attributes:
        tickets: int32 ``[n]``, counters of finished programs; zero before and after each launch.
        candidates: int32 ``[m]``, not initialized.
    """

    def __init__(self) -> None:
        self.tickets = self.candidates = torch.empty(0, dtype=torch.int32)

    def reserve(self, tickets: int, candidates: int, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        """Grow to at least these sizes; what grows gets twice its size, so that later launches rarely allocate."""
        if len(self.tickets) >= tickets and len(self.candidates) >= candidates:
            return
        with torch.cuda.stream(stream):  # None changes nothing
            if len(self.tickets) < tickets:
                self.tickets = torch.zeros(2 * tickets, dtype=torch.int32, device=device)
            if len(self.candidates) < candidates:
                self.candidates = torch.empty(2 * candidates, dtype=torch.int32, device=device)


@op
def top_rows(
    rows: torch.Tensor,
    req_to_token: torch.Tensor,
    chunks: Sequence[Chunk],
    topk: int,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Find each chunk's values of largest magnitude, as bfloat16; NaN is larger than any number.

    One launch on a GPU; elsewhere this reference in torch: complete on return. Among values of equal magnitude it may
    choose others than the kernel.

    Args:
        rows: ``[slots, H]`` bfloat16, float16 or float32, contiguous.
        req_to_token: ``[requests, context]`` int32, KV slot of each position of each request.
        chunks: where to search.
        topk: the most values of a chunk, at least its ``values``.
        workspace: reused by the next call on this stream; None allocates one.
        stream: where the kernel runs; None is the current one.

    Returns:
        ``[len(chunks), topk * 6]`` bytes on the host: for each chunk the indices of its values (uint32, row in the
        chunk times H plus column), then their bits (bfloat16), in any order; unused entries are zero. For rows on a GPU
        it is pinned memory that the kernel writes: it is complete when the stream has run the kernel. Keep it until
        then.
    """
    out = torch.zeros((len(chunks), topk * (INDEX_BYTES + VALUE_BYTES)), dtype=torch.uint8)
    for i, (request, start, end, mask, values) in enumerate(chunks):
        chunk = rows[req_to_token[request, start:end].long()].bfloat16()
        magnitudes = chunk.abs()
        magnitudes[~_selected(mask, end - start).to(rows.device)] = -1
        indices = magnitudes.flatten().topk(values).indices
        bits = chunk.flatten()[indices]
        out[i, : values * INDEX_BYTES] = indices.to(torch.int32).view(torch.uint8).cpu()
        out[i, topk * INDEX_BYTES :][: values * VALUE_BYTES] = bits.view(torch.uint8).cpu()
    return out


def _selected(mask: int, rows: int) -> torch.Tensor:
    """Which rows of a chunk its mask selects, bool ``[rows]``."""
    bits = torch.tensor([bool(mask >> i & 1) for i in range(MASK_BITS)])
    return bits.repeat(-(-rows // MASK_BITS))[:rows]
