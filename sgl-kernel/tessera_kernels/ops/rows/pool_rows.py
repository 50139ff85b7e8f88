"""Pool spans of the row store, in one launch for all requests that finished in a step."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from tessera_kernels.registry import op


class Reduce(IntEnum):
    """How the rows of a span become one vector."""

    MEAN = 0
    MAX = 1


class Span(NamedTuple):
    """Positions ``start .. end-1`` of the request in row ``request`` of ``req_to_token``. Never empty."""

    request: int
    start: int
    end: int
    reduce: Reduce


@op
def pool_rows(
    rows: torch.Tensor,
    req_to_token: torch.Tensor,
    spans: Sequence[Span],
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Pool each span of rows, accumulating in float32. NaN in any row of a span gives NaN.

    One launch on a GPU; elsewhere this reference in torch: equal to the kernel up to the order of sums; complete on
    return.

    Args:
        rows: ``[slots, H]`` float tensor, contiguous.
        req_to_token: ``[requests, context]`` int32, KV slot of each position of each request.
        spans: what to pool.
        stream: where the kernel runs; None is the current one.

    Returns:
        ``[len(spans), H]`` float32 on the host. For rows on a GPU it is pinned memory that the kernel writes: it is
        complete when the stream has run the kernel. Keep it until then.
    """
    out = torch.empty((len(spans), rows.shape[1]), dtype=torch.float32)
    for i, (request, start, end, reduce) in enumerate(spans):
        span = rows[req_to_token[request, start:end].long()].float()
        out[i] = span.amax(0) if reduce is Reduce.MAX else span.mean(0)
    return out
