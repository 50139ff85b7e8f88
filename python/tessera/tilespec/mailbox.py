"""Small device tensors on their way to the host, without anybody waiting for them."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import numpy as np
import torch

Tag = TypeVar("Tag")

MOST = 8
"""Copies under way at once; the overlap scheduler is two steps ahead of the device at most."""


class Mailbox(Generic[Tag]):
    """Copies of one tensor as it was at some moments, each with a tag, in order.

    Runs on one thread. The copy is on the current stream; a host buffer and its event are used again once the copy was
    received.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[torch.Tensor, torch.cuda.Event | None, Tag]] = deque()
        self._free: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def send(self, tensor: torch.Tensor, tag: Tag) -> None:
        """Copy ``tensor`` as it will be on the current stream. Dropped where `MOST` are under way: none is needed."""
        if not tensor.is_cuda:
            self._under_way.append((tensor.clone(), None, tag))
            return
        if len(self._under_way) >= MOST:
            return
        if self._free:
            host, arrived = self._free.pop()
        else:
            host, arrived = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True), torch.cuda.Event()
        host.copy_(tensor, non_blocking=True)
        arrived.record()
        self._under_way.append((host, arrived, tag))

    def receive(self) -> list[tuple[np.ndarray, Tag]]:
        """What has arrived by now, the oldest first, as copies."""
        found: list[tuple[np.ndarray, Tag]] = []
        while self._under_way:
            host, arrived, tag = self._under_way[0]
            if arrived is not None and not arrived.query():
                break
            self._under_way.popleft()
            found.append((host.numpy().copy(), tag))
            if arrived is not None:
                self._free.append((host, arrived))
        return found
