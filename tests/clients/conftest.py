"""The server that other people's clients talk to."""

from __future__ import annotations

import pytest

from tessera.launching.server import Server
from tessera_testing.pool import ServerPool


@pytest.fixture
def server(server_pool: ServerPool) -> Server:
    """The plain server with rows; structured output needs a grammar backend that runs without a GPU."""
    return server_pool.get("--enable-return-hidden-states", "--grammar-backend", "llguidance", spawned=True)
