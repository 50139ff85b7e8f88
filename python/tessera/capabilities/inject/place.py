"""Put vectors into a batch's embeddings, on the device. Every tensor-parallel rank does the same to the same tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tessera.capabilities.inject.injection import ADD, MATCHED, Injection, concatenate


class Plan(NamedTuple):
    """What one forward injects, on the device.

    Attributes:
        positions: ``[n]`` int64, rows of the forward's tokens.
        vectors: ``[n, H]``.
        flags: ``[n]`` uint8; None where all are put in place as they are.
    """

    positions: torch.Tensor
    vectors: torch.Tensor
    flags: torch.Tensor | None

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Their memory must not be given away before this stream is done with them."""
        for tensor in self:
            if tensor is not None:
                tensor.record_stream(stream)


class Piece(NamedTuple):
    """The part of a request that a forward computes: its tokens ``start .. end-1`` are rows ``offset ..``."""

    injection: Injection
    start: int
    end: int
    offset: int


def plan(pieces: Sequence[Piece], device: torch.device | str) -> Plan | None:
    """Select what falls into this forward and begin to copy it to the device. None where nothing does."""
    positions: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    flags: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
    vectors: list[torch.Tensor] = []
    for injection, start, end, offset in pieces:
        first, last = np.searchsorted(injection.positions, (start, end)).tolist()
        if first < last:
            positions.append(injection.positions[first:last] - start + offset)
            flags.append(injection.flags[first:last])
            vectors.append(injection.vectors[first:last])
    if not positions:
        return None
    kinds = np.concatenate(flags)
    return Plan(
        _to_device(torch.from_numpy(np.concatenate(positions)), device),
        concatenate(vectors, pin_memory=torch.device(device).type == "cuda").to(device, non_blocking=True),
        _to_device(torch.from_numpy(kinds), device) if kinds.any() else None,
    )


def place(embeds: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Write the vectors into ``embeds`` ``[tokens, H]``, in place, and return it.

    Sums and lengths are float32; the result is rounded to the dtype of ``embeds`` once.
    """
    rows = plan.vectors
    if plan.flags is not None:
        rows = _combined(embeds.index_select(0, plan.positions).float(), rows.float(), plan.flags.unsqueeze(1))
    return embeds.index_copy_(0, plan.positions, rows.to(embeds.dtype))


def _combined(base: torch.Tensor, vectors: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    gain = torch.linalg.vector_norm(base, dim=1, keepdim=True) / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    vectors = torch.where((flags & MATCHED) > 0, vectors * gain, vectors)
    return torch.where((flags & ADD) > 0, base + vectors, vectors)


def _to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
