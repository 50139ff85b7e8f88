"""Rows of prefixes whose KV SGLang keeps in the host's memory (``--enable-hierarchical-cache``): they go with it."""

import torch

from tessera.rows import host_memory
from tessera.rows.store import RowStore
from tessera_kernels.ops.rows.copy_rows import copy_rows


class HostRows:
    """A row for each token of SGLang's host pool, by the pool's own index.

    Rows are copied when their KV is, on the same stream, so whatever waits for the KV has them. A row that was not
    written is NaN, here and where it is copied to. A token that was freed keeps its row until its next owner's comes.

    Args:
        tokens: how many the host pool holds.
        store: the rows of the device.
    """

    def __init__(self, tokens: int, store: RowStore) -> None:
        self._store = store
        hidden_size, dtype = store.rows.shape[1], store.rows.dtype
        self.rows = host_memory.allocate(tokens, hidden_size, dtype)
        if store.rows.is_cuda:
            host_memory.register(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the host's memory that the rows take."""
        return self.rows.numel() * self.rows.element_size()

    def back_up(self, tokens: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy the rows of KV slots to the host, on the current stream.

        Args:
            tokens: ``[n]`` integers, the index of each in the host pool; on any device.
            slots: ``[n]`` integers, likewise.
        """
        self._copy(self.rows, tokens, self._store.rows, slots)

    def load(self, tokens: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy rows from the host to KV slots, on the current stream; arguments as in `back_up`."""
        self._copy(self._store.rows, slots, self.rows, tokens)

    def invalidate(self) -> None:
        """Forget every row (the weights changed). The store must have waited for what runs: see its `invalidate`."""
        self.rows.fill_(float("nan"))

    def _copy(self, target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, of: torch.Tensor) -> None:
        """Copy rows. A failure marks the store as broken: the target would keep its previous owner's rows."""
        device = self._store.rows.device
        try:
            copy_rows((_on(device, to), _on(device, of)), target, source)
        except (RuntimeError, IndexError) as error:
            self._store.mark_broken(str(error))


def _on(device: torch.device, indices: torch.Tensor) -> torch.Tensor:
    """The indices on a device, by way of pinned memory: from other memory the host would wait for the stream."""
    if indices.device == device:
        return indices
    return indices.pin_memory().to(device, non_blocking=True)
