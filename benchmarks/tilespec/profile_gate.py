"""Servers with TileSpec measure what their steps cost one after the other, and beside idle servers only.

All servers start side by side. One with TileSpec times its graphs before it serves, and work of others on the same GPU
would be in its cost profile. So it waits there, with all graphs captured, until `bench_tilespec.py up` opens its gate:
a folder with two signs, that the server has come so far, and that it may go on.

`register` is a plugin of SGLang's (`plugins.py`).
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilespec.plugins import path_of, wait_for

GATE = "TILESPEC_GATE"
_ARRIVED, _OPENED = "arrived", "opened"
_TARGET = "tessera_patches.tilespec.start.profile.profile"
"""Whatever is timed before a server serves is timed in there, a spot check of a profile from the cache included."""


def closed(gate: Path) -> dict[str, str]:
    """Close the gate; return what the server that is to wait there needs in its environment."""
    gate.mkdir(parents=True, exist_ok=True)
    for sign in (_ARRIVED, _OPENED):  # of an earlier server
        (gate / sign).unlink(missing_ok=True)
    return {GATE: str(gate)}


def arrived(gate: Path) -> bool:
    """Whether the server waits there, or did."""
    return (gate / _ARRIVED).exists()


def let_go(gate: Path) -> None:
    """Let the server go on."""
    (gate / _OPENED).touch()


def register() -> None:
    """Hook the measuring, in a scheduler's process: the launcher measures nothing, and need not import it."""
    if path_of(GATE) is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _in_turn, HookType.AROUND)


def _in_turn(original: Callable[..., Any], *args: Any) -> Any:
    gate = Path(os.environ[GATE])
    (gate / _ARRIVED).touch()
    print(f"waits until it may measure its steps: {gate}", flush=True)
    wait_for(gate / _OPENED, "nobody let this server measure its steps")
    return original(*args)
