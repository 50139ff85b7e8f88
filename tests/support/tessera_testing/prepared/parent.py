"""Asks a prepared process to become another one, and is that one's parent."""

from __future__ import annotations

import ctypes
import multiprocessing.util
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tessera_testing.prepared.command import Command

_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_SPAWNED = "--multiprocessing-fork"
"""What multiprocessing's ``spawn`` adds to the command line of a new process."""
_exec = multiprocessing.util.spawnv_passfds


class Parent:
    """Makes processes that are children of this one, by a prepared process that is a descendant of it.

    Args:
        prepared: a socket to that process, which keeps messages apart.
    """

    def __init__(self, prepared: socket.socket) -> None:
        self._prepared = prepared
        self._lock = threading.Lock()

    def make(self, command: Command, descriptors: Sequence[int]) -> int:
        """Return the id of a new process.

        Raises:
            RuntimeError: the prepared process has ended.
        """
        with self._lock, _adopting():
            command.send(self._prepared, list(descriptors))
            answer = self._prepared.recv(64)
        if not answer:
            raise RuntimeError("the process that has imported the engine is gone")
        return int(answer)

    def spawn(self, path: bytes, args: Sequence[Any], descriptors: Sequence[int]) -> int:
        """In the place of ``multiprocessing.util.spawnv_passfds``."""
        words = [os.fsdecode(word) for word in args]
        if _SPAWNED not in words:
            return _exec(path, args, descriptors)
        numbers = tuple(sorted(map(int, descriptors)))
        python = tuple(words[words.index("-c") :])
        return self.make(Command(python, dict(os.environ), str(Path.cwd()), numbers, own_session=False), numbers)


@contextmanager
def _adopting() -> Iterator[None]:
    """Descendants whose parent ends become this process's children meanwhile."""
    _adopt(True)
    try:
        yield
    finally:
        _adopt(False)


def _adopt(on: bool) -> None:
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
