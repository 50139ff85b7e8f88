"""A server with TileSpec that does one thing as SGLang does it: what is our way worth, on this SGLang?

The setting ``tile-without-PART`` is started with it, for each of `PARTS`.

`register` is a plugin of SGLang's (`plugins.py`).
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from typing import Any, NamedTuple

WITHOUT = "TILESPEC_WITHOUT"
_TILESPEC = "tessera_patches.tilespec"


class Part(NamedTuple):
    """A function of ours, and what stands in for it."""

    target: str
    instead: Callable[..., Any]
    """Called with the function and its arguments."""


def _nothing(*_: Any) -> None:
    return None


def _unmapped(*_: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _load_twice(_: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

    DecodeCudaGraphRunner.load_batch(runner, *args, **kwargs)


def _computed_layout(_: Any, plan: Any, views: Any, bs: int, tokens: int, rows: int) -> Any:  # noqa: ARG001
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    lens = views.first(plan, bs)["verify_lens"]
    return RaggedVerifyLayout.from_verify_lens_device(verify_lens=lens, graph_num_tokens=rows)


PARTS = {
    "stash": Part(f"{_TILESPEC}.relay._drafts", _nothing),
    "extend": Part(f"{_TILESPEC}.extend.offsets.fuse_extend", _nothing),
    "query": Part(f"{_TILESPEC}.extend.last_rows.attends_in_one_layer", _nothing),
    "offsets": Part(f"{_TILESPEC}.attention.flash.fuse_verify", _nothing),
    "layout": Part(f"{_TILESPEC}.verify.layout.layout_of", _computed_layout),
    "single": Part(f"{_TILESPEC}.verify.single_load.SingleLoadGraphRunner.load_batch", _load_twice),
    "map": Part(f"{_TILESPEC}.draft.chains.map_to_target_ids", _unmapped),
}
"""What can be left out: the kernel that stores the drafts; the offsets of draft-extends, and their single query; the
offsets of verifications; the layout from the plan; the second load of a batch; target ids where tokens are selected."""


def register() -> None:
    """Hook the part, in a scheduler's process."""
    name = os.environ.get(WITHOUT)
    if not name or multiprocessing.parent_process() is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(PARTS[name].target, PARTS[name].instead, HookType.AROUND)
