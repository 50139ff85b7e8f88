"""How often each seam was reached: that a change was made does not show that SGLang still comes to it.

Functions are counted where they are called. What no function shows, a value that SGLang reads, an object that it keeps
or a class of which it makes objects, is counted where it is set or made.

Counts are in memory that all processes of a server share, so that the main process sees those of its schedulers. No
lock is taken: of two calls at once one may not be counted, but a seam that was called is never at 0 again.
"""

import os
from collections.abc import Callable, Iterable
from functools import cache, wraps
from mmap import mmap
from pathlib import Path
from typing import Any

from tessera_patches.core.seam import Phase, Seam
from tessera_patches.inventory import SEAMS

_SIZE = 8 * (len(SEAMS) + 1)  # the last one is of entries that this version of SGLang does not need
_counts = memoryview(bytearray(_SIZE)).cast("Q")
"""Calls of each seam of the inventory; of this process alone, until it shares them."""
_shared: str | None = None
"""The shared memory that other processes open."""


def counted(handler: Callable[..., Any], seam: Seam) -> Callable[..., Any]:
    """The handler of a seam, which counts its calls; a class stays one, and counts none."""
    if isinstance(handler, type):
        return handler
    return _counting(handler, SEAMS.index(seam))


def count(handler: Callable[..., Any], place: str = "") -> None:
    """Count once for a seam that no registry installs, or a class.

    Args:
        handler: what makes the change, as `Seam.handler` names it.
        place: the end of the seam's target, where the handler makes several changes.
    """
    _counts[index_of(handler, place)] += 1


def counting(replacement: Callable[..., Any], handler: Callable[..., Any], place: str = "") -> Callable[..., Any]:
    """A function that SGLang gets, with its calls counted for the seam of `count`."""
    return _counting(replacement, index_of(handler, place))


def _counting(function: Callable[..., Any], index: int) -> Callable[..., Any]:
    """The function, with its calls counted; not where torch compiles them, or the count would break the graph."""
    from torch.compiler import is_compiling  # what SGLang's hook registry has imported by now

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            _counts[index] += 1
        return function(*args, **kwargs)

    return call


@cache
def index_of(handler: Callable[..., Any], place: str = "") -> int:
    """Where the seam of `count` is counted.

    Raises:
        ValueError: several seams of this handler end with ``place``.
    """
    name = f"{handler.__module__}:{handler.__qualname__}"
    own = [i for i, seam in enumerate(SEAMS) if seam.handler == name]
    own = [i for i in own if not SEAMS[i].registered] or own  # the others are counted by what the registry gets
    if len(own) > 1:
        own = [i for i in own if SEAMS[i].target.endswith(f".{place}")]
    if len(own) > 1:
        raise ValueError(f"several changes of {name} end with {place!r}")
    return own[0] if own else len(SEAMS)


def add(index: int) -> None:
    """Count once where `index_of` says: what a step does not look up again."""
    _counts[index] += 1


def share() -> str:
    """Begin to count, for the server that this process starts, where its schedulers can count too.

    Returns:
        What they hand to `attach`. It can be opened as long as this process lives.
    """
    global _shared  # noqa: PLW0603 - one server a process at a time
    if _shared is None:
        file = os.memfd_create("tessera-calls")
        os.ftruncate(file, _SIZE)
        _shared = f"/proc/{os.getpid()}/fd/{file}"
        attach(_shared)
    earlier = (Phase.CPU, Phase.LOAD)  # others: in a server that this process had before
    forget(seam for seam in SEAMS if seam.phase not in earlier)
    return _shared


def attach(path: str) -> None:
    """Count where the main process does, what was counted so far included."""
    global _counts  # noqa: PLW0603
    with Path(path).open("r+b") as file:
        shared = memoryview(mmap(file.fileno(), _SIZE)).cast("Q")
    for index, calls in enumerate(_counts):
        if calls:  # adding 0 could undo the first call that another process counts meanwhile
            shared[index] += calls
    _counts = shared


def forget(seams: Iterable[Seam]) -> None:
    """Set the counts of these seams to 0."""
    for seam in seams:
        _counts[SEAMS.index(seam)] = 0


def counts(seams: Iterable[Seam]) -> dict[str, int]:
    """Calls of each, by `Seam.name`, in all processes of the server."""
    return {seam.name: _counts[SEAMS.index(seam)] for seam in seams}


def unreached(seams: Iterable[Seam]) -> list[str]:
    """Names of the seams that no process of the server has called."""
    return [seam.name for seam in seams if not _counts[SEAMS.index(seam)]]
