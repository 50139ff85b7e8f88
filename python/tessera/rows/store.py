"""One tensor ``[KV slots, H]`` that holds the hidden state of the token in each KV slot.

The slot is the token's identity in SGLang: prefix-cache hits, chunked prefill, retraction, batches and ``n > 1`` all
speak in slots, so a row stored at its token's slot needs no bookkeeping of its own.
"""

import logging

import torch

from tessera.rows import host_memory

logger = logging.getLogger(__name__)


def row_bytes(hidden_size: int, dtype: torch.dtype) -> int:
    """Bytes that one token adds to the memory of the KV cache."""
    return hidden_size * dtype.itemsize


class RowStore:
    """Last-layer hidden states (post final norm, model dtype) by KV slot.

    A slot that was not written since the start, or since the last weight update, holds NaN: whatever reads it sees a
    result that is not finite, never a wrong one. A slot that was freed keeps its row until its next owner writes it.

    Args:
        slots: number of KV slots, the padding slot included.
        hidden_size: H, the width of a row.
        dtype: the model's dtype.
        device: where the model runs.
        on_host: keep the rows in the host's memory, which the GPU reads and writes over its bus.

    Attributes:
        factor: what states are multiplied by to be rows, where a model makes them smaller before its head.
    """

    def __init__(
        self, slots: int, hidden_size: int, dtype: torch.dtype, device: torch.device | str, *, on_host: bool = False
    ) -> None:
        if on_host:
            self.rows = host_memory.seen_by(device, host_memory.allocate(slots, hidden_size, dtype))
        else:
            self.rows = torch.full((slots, hidden_size), float("nan"), dtype=dtype, device=device)
        self.on_host = on_host
        self.broken: str | None = None
        self.factor: float | None = None
        self._released = False

    @property
    def nbytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    def write(self, slots: torch.Tensor, states: torch.Tensor | None) -> None:
        """Store ``states[i]`` at ``slots[i]``, on the current stream.

        A write that fails marks the store as broken: a slot that kept its previous owner's row must
        never be read again.

        Args:
            slots: ``[n]`` integer tensor, the KV slot of each token of this forward.
            states: ``[n, H]`` hidden states of the same tokens.
        """
        if states is None or states.shape != (slots.shape[0], self.rows.shape[1]) or states.dtype != self.rows.dtype:
            found = "nothing" if states is None else f"{tuple(states.shape)} {states.dtype}"
            self.mark_broken(f"the model returned {found} for {slots.shape[0]} tokens, not rows of {self._row()}")
            return
        try:
            self.rows.index_copy_(0, slots, states if self.factor is None else states * self.factor)
        except (RuntimeError, IndexError) as error:
            self.mark_broken(str(error))

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy the row of slot ``source[i]`` to slot ``target[i]``, all at once, on the current stream.

        A failure marks the store as broken, as in `write`.

        Args:
            target: ``[n]`` integer tensor without duplicates, except where source is the same.
            source: ``[n]`` integer tensor.
        """
        try:
            self.rows.index_copy_(0, target, self.rows.index_select(0, source))
        except (RuntimeError, IndexError) as error:
            self.mark_broken(str(error))

    def invalidate(self) -> None:
        """Forget every row (the weights changed). Waits for the forwards in flight, which still use the old weights."""
        if self._released:
            return
        self._synchronize()
        self.rows.fill_(float("nan"))
        self._synchronize()

    def release(self) -> None:
        """Wait for the reads in flight, before the memory behind the rows is released."""
        self._synchronize()
        self._released = True

    def resume(self) -> None:
        """Forget every row: the memory behind them is back, with undefined contents."""
        self._released = False
        self.invalidate()

    def mark_broken(self, why: str) -> None:
        """Fail every later read, with the reason given first."""
        if self.broken is None:
            self.broken = why
            logger.error("tessera: the row store is broken, embeddings fail from now on: %s", why)

    def _row(self) -> str:
        return f"{self.rows.shape[1]} {self.rows.dtype}"

    def _synchronize(self) -> None:
        if self.rows.is_cuda:
            torch.cuda.synchronize(self.rows.device)
