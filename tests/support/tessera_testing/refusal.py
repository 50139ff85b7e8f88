"""Starts a server that must refuse to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tessera.launching.command import LAUNCHER
from tessera.launching.server import START_SECONDS, Server, ServerStartError
from tessera_testing.pool import MakeServer

Refusal = Callable[..., str]
"""`expect_refusal`, of servers that are made in some way."""


class RefusalExpectedError(RuntimeError):
    """A server that must refuse to start serves."""


def expect_refusal(
    model: Path,
    *args: str,
    env: Mapping[str, str] | None = None,
    launched_by: tuple[str, ...] = LAUNCHER,
    seconds: float = START_SECONDS,
    make: MakeServer = Server,
) -> str:
    """Start a server that must refuse to start, made by ``make``. Return its log.

    Raises:
        ServerStartError: it exited with 0, was killed by a signal, or was neither up nor gone after `seconds`.
        RefusalExpectedError: it serves.
    """
    server = make(model, *args, env=env, launched_by=launched_by)
    server.start()
    try:
        server.wait_ready(seconds)
    except ServerStartError as error:
        if error.exit_code is None or error.exit_code <= 0:
            raise
        return error.log
    finally:
        server.stop()
    raise RefusalExpectedError(f"the server with {' '.join(args) or 'no arguments'} should have refused to start")
