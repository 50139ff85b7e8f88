"""Counts what hostile bodies got, by status and code; ``TESSERA_FUZZ_RESULTS=FOLDER`` keeps the counts of a run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provenance import provenance
from tessera_testing.tally import Tally


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """The counts of one file of tests."""
    begin = time.monotonic()
    counts = Tally()
    yield counts
    folder = os.environ.get("TESSERA_FUZZ_RESULTS")
    if folder:
        name = Path(request.node.path).stem.removeprefix("test_").replace("_", "-")
        record = {
            **provenance(),
            "TESSERA_FUZZ_BODIES": os.environ.get("TESSERA_FUZZ_BODIES"),
            "seconds": round(time.monotonic() - begin),
            "failed_tests": request.session.testsfailed,
            "bodies": counts.total(),
            "answers": dict(sorted(counts.items())),
        }
        Path(folder, f"fuzz-{name}.json").write_text(json.dumps(record, indent=1) + "\n")
