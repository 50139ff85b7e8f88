"""The server that other people's clients talk to."""

from __future__ import annotations

import pytest

from tessera.launching.server import Server
from tessera_testing.pool import ServerPool


@pytest.fixture(scope="session")
def server(server_pool: ServerPool) -> Server:
    """The plain server with rows, and structured output whose JSON the tiny model cannot fill up with blanks."""
    grammars = ("--grammar-backend", "llguidance", "--constrained-json-disable-any-whitespace")
    return server_pool.get("--enable-return-hidden-states", *grammars, spawned=True)
