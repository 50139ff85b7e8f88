"""Through one pinned buffer, made at start, what was read on a GPU reaches the host."""

from __future__ import annotations

import torch

STAGING_BYTES = 16 * 2**20
"""Four requests of 512 rows of 4,096 bfloat16 values. What is larger comes in pieces, at most 3 % slower."""


class Staging:
    """Copies device tensors to the host on a stream of its own. For one thread at a time.

    Pinned memory is taken once: to pin some for each read costs a millisecond for a few MiB, and holds the driver's
    lock while the scheduler launches kernels.

    Args:
        device: where the tensors are.
        nbytes: size of the pinned buffer.
    """

    def __init__(self, device: torch.device, nbytes: int = STAGING_BYTES) -> None:
        self._stream = torch.cuda.Stream(device)
        self._arrived = torch.cuda.Event(blocking=True)
        self._pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def fetch(self, tensor: torch.Tensor, ready: torch.cuda.Event) -> torch.Tensor:
        """A copy in ordinary memory. Blocks this thread, not the interpreter.

        Args:
            tensor: on the device, contiguous; the caller keeps it until this returns.
            ready: what the copy waits for on the device.
        """
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.numel() == 0:
            return host
        source, target = _bytes(tensor), _bytes(host)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            for begin in range(0, len(source), len(self._pinned)):
                piece = source[begin : begin + len(self._pinned)]
                pinned = self._pinned[: len(piece)]
                pinned.copy_(piece, non_blocking=True)
                self._arrived.record(self._stream)
                self._arrived.synchronize()
                target[begin : begin + len(piece)].copy_(pinned)
        return host


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
