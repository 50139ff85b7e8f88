"""How often each seam was called: that a hook was applied does not show that SGLang still calls it.

Counts are in memory that all processes of a server share, so that the main process sees those of its schedulers. No
lock is taken: of two calls at once one may not be counted, but a seam that was called is never at 0 again.
"""

import os
from collections.abc import Callable, Iterable
from functools import wraps
from mmap import mmap
from pathlib import Path
from typing import Any

from tessera_patches.core.seam import Phase, Seam
from tessera_patches.inventory import SEAMS

_SIZE = 8 * len(SEAMS)
_counts = memoryview(bytearray(_SIZE)).cast("Q")
"""Calls of each seam of the inventory; of this process alone, until it shares them."""
_shared: str | None = None
"""What other processes open."""


def counted(handler: Callable[..., Any], seam: Seam) -> Callable[..., Any]:
    """The handler of a seam, which counts its calls; a class stays one, and counts none."""
    if isinstance(handler, type):
        return handler
    index = SEAMS.index(seam)

    @wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        _counts[index] += 1
        return handler(*args, **kwargs)

    return call


def share() -> str:
    """Begin to count, for the server that this process starts, where its schedulers can count too.

    Returns:
        What they hand to `join`. It can be opened as long as this process lives.
    """
    global _shared  # noqa: PLW0603 - one server a process at a time
    if _shared is None:
        file = os.memfd_create("tessera-calls")
        os.ftruncate(file, _SIZE)
        _shared = f"/proc/{os.getpid()}/fd/{file}"
        attach(_shared)
    forget(seam for seam in SEAMS if seam.phase is not Phase.LOAD)  # calls in a server that this process had before
    return _shared


def attach(path: str) -> None:
    """Count where the main process does, what was counted so far included."""
    global _counts  # noqa: PLW0603
    with Path(path).open("r+b") as file:
        shared = memoryview(mmap(file.fileno(), _SIZE)).cast("Q")
    for index, count in enumerate(_counts):
        shared[index] += count
    _counts = shared


def forget(seams: Iterable[Seam]) -> None:
    """Count these from 0."""
    for seam in seams:
        _counts[SEAMS.index(seam)] = 0


def counts(seams: Iterable[Seam]) -> dict[str, int]:
    """Calls of each, by target, in all processes of the server."""
    return {seam.target: _counts[SEAMS.index(seam)] for seam in seams}


def unreached(seams: Iterable[Seam]) -> list[str]:
    """Targets of those that were called in no process of the server."""
    return [seam.target for seam in seams if not _counts[SEAMS.index(seam)]]
