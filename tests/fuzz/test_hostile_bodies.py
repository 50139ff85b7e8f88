"""A few hundred of the bodies of ``make fuzz``, and a good request after each few: no 500, and no answer changes.

``TESSERA_FUZZ_BODIES=10000`` runs more (with ``--timeout=3600``).
"""

from __future__ import annotations

import asyncio
import os

from hostile.campaign import fuzz
from tessera.launching.server import Server

BODIES = int(os.environ.get("TESSERA_FUZZ_BODIES", "400"))


def test_hostile_bodies(injecting: Server) -> None:
    """Each is answered with less than 500; the server lives, and says to the good request what it said before."""
    report = asyncio.run(fuzz(injecting.url, 37, BODIES))
    assert (report.faults, report.silent) == ([], [])
    total = sum(report.answers.values(), start=type(next(iter(report.answers.values())))())
    assert total.total() == BODIES
    assert total["200"] > BODIES / 10
    assert total["400"] > BODIES / 4
