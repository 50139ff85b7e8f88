"""Copies of small device tensors to the host that no thread waits for."""

from collections import deque
from typing import Generic, TypeVar

import numpy as np
import torch

from tessera.tilespec.streams import record

Tag = TypeVar("Tag")

MAX_IN_FLIGHT = 8
"""Copies in flight at once. The overlap scheduler is at most two steps ahead of the device, and copies wait until the
policy searches."""


class _Copy:
    """A pinned host buffer of a tensor's shape, and the event that says that it was filled; None without a GPU."""

    __slots__ = ("arrived", "host", "values")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self.values: np.ndarray = self.host.numpy()
        self.arrived = torch.cuda.Event() if tensor.is_cuda else None


class HostCopyQueue(Generic[Tag]):
    """A queue of copies of one tensor, each with a tag. For one thread.

    Buffers and events are used again after their copy was received.
    """

    def __init__(self) -> None:
        self._in_flight: deque[tuple[_Copy, Tag]] = deque()
        self._free: list[_Copy] = []

    def send(self, tensor: torch.Tensor, tag: Tag) -> None:
        """Copy ``tensor`` on the current stream. Does nothing while `MAX_IN_FLIGHT` copies are in flight."""
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            return
        copy = self._free.pop() if self._free else _Copy(tensor)
        copy.host.copy_(tensor, non_blocking=True)
        if copy.arrived is not None:
            record(copy.arrived)
        self._in_flight.append((copy, tag))

    def receive(self) -> list[tuple[np.ndarray, Tag]]:
        """The copies that have arrived, the oldest first. They are valid until the next `send`."""
        found: list[tuple[np.ndarray, Tag]] = []
        while self._in_flight:
            copy, tag = self._in_flight[0]
            if copy.arrived is not None and not copy.arrived.query():
                break
            self._in_flight.popleft()
            found.append((copy.values, tag))
            self._free.append(copy)
        return found
