"""Graphs that load a verification's batch once.

SGLang loads it before it waits for another stream that may have planned ahead, and again, in part, before it replays
the graph. TileSpec refuses that stream, so the second time writes what is there.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

from tessera_patches.core.changes import change_class


class LoadedOnce(DecodeCudaGraphRunner):
    """SGLang's runner of decode graphs; the batch that it loaded last is not loaded again before its replay."""

    _loaded: Any = None

    def load_batch(self, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Fill the buffers of the graph that is to be replayed."""
        loaded, self._loaded = self._loaded, None
        if forward_batch is loaded and not forward_batch.needs_forward_metadata_init():
            return
        super().load_batch(forward_batch, *args, **kwargs)
        self._loaded = forward_batch


def load_once(runner: Any) -> None:
    """Turn a runner into a `LoadedOnce`; there may be none."""
    if type(runner) is DecodeCudaGraphRunner:
        change_class(runner, LoadedOnce)
