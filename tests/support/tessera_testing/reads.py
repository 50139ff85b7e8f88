"""Reads of the row store, and what they bring, put together by hand."""

from __future__ import annotations

from typing import Any

import torch

from tessera.rows.kinds import BY_READ, KINDS, Kind, Placed
from tessera.rows.reader import Fetched


def grouped(*placed: Placed) -> dict[Kind, list[Placed]]:
    """By kind, as a reader takes them."""
    found: dict[Kind, list[Placed]] = {}
    for own in placed:
        found.setdefault(BY_READ[type(own.read)], []).append(own)
    return found


def fetched(hidden_size: int, dtype: str = "float32", **tensors: list[torch.Tensor]) -> Fetched:
    """What a read would have brought: tensors by the name of their kind."""
    return Fetched(tuple(tensors.get(kind.name, []) for kind in KINDS), hidden_size, dtype)


def tensors_of(brought: Fetched, read: type[Any]) -> list[torch.Tensor]:
    """Those of one kind of read."""
    return brought.tensors[KINDS.index(BY_READ[read])]
