"""Servers in which something of ours is broken on purpose."""

from __future__ import annotations

import pytest

from tessera.launching.server import Server
from tessera_testing.pool import ServerPool


@pytest.fixture
def failing(server_pool: ServerPool) -> Server:
    """A server in which pooling fails for requests with certain ids, and which takes itself for deterministic."""
    return server_pool.get("--enable-return-hidden-states", env={"TESSERA_TEST_FAULT": "pooling"})
