"""Every vector is the right one for its own request, whatever runs beside it."""

from __future__ import annotations

import pytest

from tessera.testing.canary import canaries, fly, judge
from tessera.testing.reference import HuggingFace
from tessera.testing.server import Server

FLOAT32_ERROR = 1e-5


@pytest.mark.parametrize("which", ["server", "strained"])
def test_canaries(which: str, request: pytest.FixtureRequest, hf: HuggingFace) -> None:
    """300 requests, 24 at once: shared prefixes, every option, streams, and clients that leave half-way."""
    server: Server = request.getfixturevalue(which)
    flock = canaries(300, vocabulary=1000, seed=5, leaving=0.1)
    verdicts = judge(flock, fly(server.url, flock, at_once=24), hf)
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert max(verdict.error for verdict in verdicts) <= FLOAT32_ERROR
    assert sum(verdict.cached > 0 for verdict in verdicts) > len(verdicts) / 3
