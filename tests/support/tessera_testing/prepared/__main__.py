"""The process that has imported the engine, and becomes others: ``python -m tessera_testing.prepared SOCKET``."""

from __future__ import annotations

import gc
import importlib
import multiprocessing.util
import os
import pickle
import runpy
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tessera_testing.prepared.command import Command, receive
from tessera_testing.prepared.imports import import_engine, recorded, reread
from tessera_testing.prepared.parent import Parent

_POLL_SECONDS = 0.001
_POLLS = 60_000


def main(number: int) -> None:
    """Import, say so, and become what is asked for."""
    commands = socket.socket(fileno=number)
    imported = recorded(import_engine)
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        raise RuntimeError(f"threads run after the imports, and a fork would lose them: {threading.enumerate()}")
    gc.collect()
    gc.freeze()  # else every process would soon copy every page, for the marks that looking for garbage leaves
    commands.send(pickle.dumps(imported))
    become(commands, imported.written)


def become(commands: socket.socket, written: Mapping[str, str]) -> None:
    """Make processes as they are asked for. It returns in them, when each has done its work."""
    command = serve(commands, written)
    own, of_children = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:  # a copy that stays as it is, and becomes what this process starts
        own.close()
        become(of_children, written)
        return
    of_children.close()
    multiprocessing.util.spawnv_passfds = Parent(own).spawn  # type: ignore[assignment]
    run(command)


def serve(commands: socket.socket, written: Mapping[str, str]) -> Command:
    """Fork a process for each command, and return in that process only; end when nobody is left who could ask.

    Leaders of sessions that were asked for end then, too: tests that were killed have not stopped their servers.
    """
    leaders: list[int] = []
    while received := receive(commands):
        command, descriptors = received
        if (made := fork_for_adoption()) == 0:
            for one in leaders:
                os.close(one)
            commands.close()
            command.apply(descriptors, written)
            return command
        if command.own_session:
            leaders.append(os.pidfd_open(made))
        commands.send(b"%d" % made)
        for one in descriptors:
            os.close(one)
    for one in leaders:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(one, signal.SIGKILL)
    os._exit(0)


def fork_for_adoption() -> int:
    """Fork a process whose parent ends at once, so that an ancestor adopts it. Returns its id, and 0 in it."""
    reader, writer = os.pipe()
    if between := os.fork():
        os.waitpid(between, 0)
        made = int(os.read(reader, 64))
    else:
        between, made = os.getpid(), os.fork()
        if made:
            os.write(writer, b"%d" % made)
            os._exit(0)
        for _ in range(_POLLS):
            if os.getppid() != between:
                break
            time.sleep(_POLL_SECONDS)
        else:
            os._exit(1)  # whoever waits for it sees that it ended
    os.close(reader)
    os.close(writer)
    return made


def run(command: Command) -> None:
    """Do what Python does with these arguments."""
    reread()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # those of random and of uuid are others after a fork already
    if "sitecustomize" in sys.modules:
        importlib.reload(sys.modules["sitecustomize"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    kind, what, *rest = command.args
    sys.argv = [what if kind == "-m" else kind, *rest]
    if kind == "-m":
        runpy._run_module_as_main(what)  # type: ignore[attr-defined]
    elif kind == "-c":
        exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102 - as Python does
    else:
        raise ValueError(f"cannot run {command.args}: only -m and -c")


if __name__ == "__main__":
    main(int(sys.argv[1]))
