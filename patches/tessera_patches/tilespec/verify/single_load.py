"""A graph runner that loads the batch of a verification once.

SGLang loads it before it waits for its plan stream, and again, in part, before the replay. TileSpec refuses that
stream, so the second load changes nothing.
"""

from typing import Any

from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

from tessera_patches.core.changes import change_class


class SingleLoadGraphRunner(DecodeCudaGraphRunner):
    """SGLang's runner of decode graphs, which skips the second load of a batch."""

    _loaded: Any = None

    def load_batch(self, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Fills the graph's buffers, unless the last call did so for this batch."""
        loaded, self._loaded = self._loaded, None
        if forward_batch is loaded and not forward_batch.needs_forward_metadata_init():
            return
        super().load_batch(forward_batch, *args, **kwargs)
        self._loaded = forward_batch


def load_batches_once(runner: Any) -> None:
    """Make a graph runner a `SingleLoadGraphRunner` (in place). None, and runners of other classes, are not changed."""
    if type(runner) is DecodeCudaGraphRunner:
        change_class(runner, SingleLoadGraphRunner)
