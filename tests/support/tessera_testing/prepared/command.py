"""What a new process is to run, as it is told to a process that becomes it."""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
from collections.abc import Mapping
from typing import NamedTuple

_MOST_BYTES = 1 << 17
_MOST_DESCRIPTORS = 64
_OUT_OF_THE_WAY = 512
"""Descriptors are moved there before they get their numbers, so that none is written over."""


class Command(NamedTuple):
    """A process that runs Python.

    Attributes:
        args: of Python: ``-m MODULE ...`` or ``-c CODE ...``.
        env: its whole environment.
        folder: where it works.
        numbers: which the descriptors get that are sent along.
        own_session: whether it leads a session of its own.
    """

    args: tuple[str, ...]
    env: dict[str, str]
    folder: str
    numbers: tuple[int, ...]
    own_session: bool

    def send(self, to: socket.socket, descriptors: list[int]) -> None:
        """Send it, with as many descriptors as there are numbers, over a socket that keeps messages apart."""
        socket.send_fds(to, [pickle.dumps(self)], descriptors)

    def apply(self, descriptors: list[int], written: Mapping[str, str]) -> None:
        """Give this process what ``exec`` would have given it, and the variables that imports have set."""
        held = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY) for one in descriptors]
        for one in descriptors:
            os.close(one)
        for number, one in zip(self.numbers, held, strict=True):
            os.dup2(one, number)
            os.close(one)
        if self.own_session:
            os.setsid()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update({**written, **self.env})


def receive(source: socket.socket) -> tuple[Command, list[int]] | None:
    """Wait for the next command and its descriptors; None once nobody is left who could send one."""
    content, descriptors, _, _ = socket.recv_fds(source, _MOST_BYTES, _MOST_DESCRIPTORS)
    if not content:
        return None
    command: Command = pickle.loads(content)  # noqa: S301 - of the process that this one was forked for
    return command, descriptors
