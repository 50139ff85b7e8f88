"""Servers in which something of ours is broken on purpose."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.testing.pool import ServerPool
from tessera.testing.server import Server

SITE = Path(__file__).parent / "site"


@pytest.fixture(scope="session")
def faulty() -> Callable[[str], dict[str, str]]:
    """From the name of a fault to the environment of a server that has it: Python loads it first."""

    def environment(fault: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")]))
        return {"TESSERA_TEST_FAULT": fault, "PYTHONPATH": path}

    return environment


@pytest.fixture
def failing(server_pool: ServerPool, faulty: Callable[[str], dict[str, str]]) -> Server:
    """A server in which pooling fails for requests with certain ids, and which takes itself for deterministic."""
    return server_pool.get("--enable-return-hidden-states", env=faulty("pooling"))
