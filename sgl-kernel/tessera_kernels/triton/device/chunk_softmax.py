"""Partial softmax of packed logits: the maximum and the sum of exponentials of each chunk of each row, by a kernel.

`tessera_kernels.ops.accept.accept_chains` and `tessera_kernels.ops.accept.sampling_cutoffs` launch it first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tessera_kernels.triton.device.launcher import Launcher

CHUNK = 4096
"""Logits of one program."""
_MINUS_INF = tl.constexpr(float("-inf"))


class Chunks(NamedTuple):
    """How rows of logits are divided, in the order of the kernels' constants."""

    stride: int
    """Elements from one row to the next."""
    vocabulary: int
    size: int
    """Logits of a chunk; the last one of a row may have fewer."""
    per_row: int
    """Chunks of a row."""

    @classmethod
    def of(cls, logits: torch.Tensor) -> Chunks:
        """The division of logits ``[rows, V]``."""
        vocabulary = logits.shape[1]
        return cls(logits.stride(0), vocabulary, CHUNK, -(-vocabulary // CHUNK))


@triton.jit  # type: ignore[untyped-decorator]
def load_cutoff(cutoff, HAS_CUTOFFS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The least logit of a row that is sampled, from a pointer; minus infinity without HAS_CUTOFFS."""
    least = _MINUS_INF
    if HAS_CUTOFFS:
        least = tl.load(cutoff)
    return least


@Launcher
@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _chunks_kernel(  # type: ignore[no-untyped-def]
    logits,
    qo_indptr,
    temperatures,
    cutoffs,
    maxima,
    sums,
    width,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SAMPLED: tl.constexpr,
    HAS_CUTOFFS: tl.constexpr,
):
    """Program (r, c) reads chunk c of padded row r, and writes nothing where the request has fewer rows."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    request, within = row // width, row % width
    begin = tl.load(qo_indptr + request)
    if within < tl.load(qo_indptr + request + 1) - begin:
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        source = logits + (begin + within).to(tl.int64) * STRIDE + column
        value = tl.load(source, mask=column < VOCABULARY, other=_MINUS_INF).to(tl.float32)
        if SAMPLED:
            value = tl.where(value < load_cutoff(cutoffs + begin + within, HAS_CUTOFFS), _MINUS_INF, value)
            value = value / tl.load(temperatures + request)
            peak = tl.max(value, 0)
            total = tl.sum(tl.exp(value - tl.where(peak == _MINUS_INF, 0.0, peak)), 0)
        else:
            value = tl.where(value == value, value, _MINUS_INF)  # numpy, in the interpreter, has no index of a NaN
            peak, index = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
            total = (chunk * CHUNK + index).to(tl.float32)
        tl.store(maxima + row * CHUNKS + chunk, peak)
        tl.store(sums + row * CHUNKS + chunk, total)


def chunk_softmax(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    temperatures: torch.Tensor | None,
    cutoffs: torch.Tensor | None,
    rows: int,
    width: int,
    chunks: Chunks,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reduce each chunk of each padded row. One launch.

    Args:
        logits: ``[packed rows, V]``, columns contiguous, V below 2^24.
        qo_indptr: int32, where each request's packed rows begin.
        temperatures: float32 ``[bs]``; None looks for the likeliest token.
        cutoffs: float32 ``[packed rows]``: logits below count as minus infinity; None for none.
        rows: padded rows, ``bs * width``.
        width: padded rows of a request.
        chunks: of the logits.

    Returns:
        float32 ``[rows * chunks]`` twice: the maximum of logit / temperature, and the sum of
        ``e^(logit / temperature - maximum)``. Without temperatures: the maximum logit, and its index in the row.
    """
    maxima, sums = (torch.empty(rows * chunks.per_row, dtype=torch.float32, device=logits.device) for _ in range(2))
    optional = [qo_indptr if one is None else one for one in (temperatures, cutoffs)]  # None is not read
    constants = *chunks, temperatures is not None, cutoffs is not None
    _chunks_kernel((rows, chunks.per_row, 1), (logits, qo_indptr, *optional, maxima, sums), (width,), constants)
    return maxima, sums
