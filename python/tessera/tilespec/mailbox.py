"""Small device tensors on their way to the host, without anybody waiting for them."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import numpy as np
import torch

from tessera.tilespec.streams import record

Tag = TypeVar("Tag")

MOST = 8
"""Copies under way at once. The overlap scheduler is two steps ahead of the device at most; what is sent in a step that
the policy does not look in waits for one that it does."""


class _Copy:
    """A host buffer for tensors like ``tensor``, and what tells that one has arrived; None without a GPU."""

    __slots__ = ("arrived", "host", "values")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self.values: np.ndarray = self.host.numpy()
        self.arrived = torch.cuda.Event() if tensor.is_cuda else None


class Mailbox(Generic[Tag]):
    """Copies of one tensor as it was at some moments, each with a tag, in order.

    Runs on one thread. The copy is on the current stream; a host buffer and its event are used again once the copy was
    received.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[_Copy, Tag]] = deque()
        self._free: list[_Copy] = []

    def send(self, tensor: torch.Tensor, tag: Tag) -> None:
        """Copy ``tensor`` as it will be on the current stream. Dropped where `MOST` are under way: none is needed."""
        if len(self._under_way) >= MOST:
            return
        copy = self._free.pop() if self._free else _Copy(tensor)
        copy.host.copy_(tensor, non_blocking=True)
        if copy.arrived is not None:
            record(copy.arrived)
        self._under_way.append((copy, tag))

    def receive(self) -> list[tuple[np.ndarray, Tag]]:
        """What has arrived by now, the oldest first; to be read before the next `send`."""
        found: list[tuple[np.ndarray, Tag]] = []
        while self._under_way:
            copy, tag = self._under_way[0]
            if copy.arrived is not None and not copy.arrived.query():
                break
            self._under_way.popleft()
            found.append((copy.values, tag))
            self._free.append(copy)
        return found
