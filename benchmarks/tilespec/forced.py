"""A server with TileSpec whose choices are given: it decides as ever, and then does what it is given.

So steps of one kind can be timed beside those of a fixed setting. What it learns meanwhile is of other steps than it
thinks: such a server measures nothing else.

`register` is a plugin of SGLang's (`plugins.py`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tilespec.plugins import command_environment, next_command, path_of, send_command

FORCED = "TILESPEC_FORCED"
_DECIDER = "tessera.tilespec.decider.Decider"


class Forced(NamedTuple):
    """What is done for batches of some size; others are the server's."""

    bs: int
    steps: int
    tier: int | None = None
    """Tokens of the ragged graph; None verifies all."""


def forcing(path: Path) -> dict[str, str]:
    """Force nothing so far; return what the server needs in its environment."""
    return command_environment(FORCED, path)


def force(path: Path, forced: Forced) -> None:
    """From the next prefill on."""
    send_command(path, forced)


def register() -> None:
    """Hook the decider, in a scheduler's process."""
    path = path_of(FORCED)
    if path is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    orders = Orders(path)
    HookRegistry.register(f"{_DECIDER}.on_prefill", orders.read, HookType.AROUND)
    HookRegistry.register(f"{_DECIDER}.choose", orders.choose, HookType.AROUND)


class Orders:
    """Around a `tessera.tilespec.decider.Decider`; looks for orders behind prefills."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forced: Forced | None = None

    def read(self, original: Callable[..., None], decider: Any, new_requests: int) -> None:
        """A prefill runs: see what is to be done after it."""
        original(decider, new_requests)
        forced = next_command(self._path)
        if forced is not None:
            self._forced = Forced(*forced)

    def choose(self, original: Callable[..., Any], decider: Any, bs: int, *args: Any) -> Any:
        """Choose, and then do what is forced."""
        choice, forced = original(decider, bs, *args), self._forced
        if forced is None or bs != forced.bs:
            return choice
        most = bs * (forced.steps + 1)
        tokens = most if forced.tier is None else min(forced.tier, most)
        return choice._replace(steps=forced.steps, tier=forced.tier, tokens=tokens)
