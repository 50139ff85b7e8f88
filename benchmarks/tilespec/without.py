"""A server with TileSpec that does one thing as SGLang does it: what is our way worth, on this SGLang?

The setting ``tile-without-PART`` is started with it, for each of `PARTS`.

`register` is a plugin of SGLang's (`plugins.py`).
"""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any, NamedTuple

WITHOUT = "TILESPEC_WITHOUT"
_TILESPEC = "tessera_patches.tilespec"


class Part(NamedTuple):
    """A function of ours, and its replacement."""

    target: str
    instead: Callable[..., Any]
    """Called with the function and its arguments."""


def _nothing(*_: Any) -> None:
    return None


PARTS = {
    "extend": Part(f"{_TILESPEC}.extend.offsets.fuse_extend", _nothing),
    "query": Part(f"{_TILESPEC}.extend.last_rows.attends_in_one_layer", _nothing),
}
"""What can be left out: the offsets of draft-extends, and their single query."""


def register() -> None:
    """Hook the part, in a scheduler's process."""
    name = os.environ.get(WITHOUT)
    if not name or multiprocessing.parent_process() is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(PARTS[name].target, PARTS[name].instead, HookType.AROUND)
