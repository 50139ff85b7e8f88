"""Hostile fingerprints and claims: each is answered or refused by name, at once; nothing else is raised."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tessera import config
from tessera.capabilities.fingerprints import claims, codec
from tessera.capabilities.fingerprints.options import ToplocVerifyRequest
from tessera.capabilities.fingerprints.verifier import distances
from tessera.errors import BadRequest
from tessera.fields import read
from tessera.rows.reads import Points
from tessera_testing.hostile_claims import JUNK, fingerprint, known_claims, mutated, random_claim

INPUTS = 20_000


def test_fingerprints() -> None:
    """What is read can be evaluated; what cannot be read is refused with its name, and little of it is sent back."""
    chooser = random.Random(3)
    own = Points(np.arange(128) * 1000, np.full(128, 0x4040, np.uint16))
    read = []
    for i in range(INPUTS):
        refusal = None
        try:
            read.append(codec.parse(f"f[{i}]", mutated(chooser), 128))
        except BadRequest as error:
            refusal = error
        if refusal is not None:
            assert (refusal.field, refusal.status, refusal.code) == (f"f[{i}]", 400, "bad_fingerprint")
            assert len(str(refusal)) < 600
    assert INPUTS / 10 < len(read) < INPUTS / 2
    full = [one for one in read if len(one.coefficients) == 128]
    assert len(distances(full, [own] * len(full))) == len(full)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a server that verifies."""
    monkeypatch.setattr(config, "active", config.Settings(rows=True, hidden_size=256, vocabulary=1024))


def bodies(chooser: random.Random) -> Iterator[Any]:
    """Claims with one thing or another wrong, and some that are right."""
    good = {
        "input_ids": [1, 2, 3],
        "output_ids": list(range(40)),
        "fingerprints": [fingerprint(chooser) for _ in range(3)],
    }
    yield from JUNK
    yield from known_claims(good)
    for _ in range(2000):
        yield random_claim(chooser, good)
    yield good


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("served")
def test_claims() -> None:
    """No claim hangs, and none raises anything but a refusal that names a field of its own."""
    accepted = 0
    for body in bodies(random.Random(4)):
        try:
            claims.read_claim("claims[0]", read({"claims": [body]}, ToplocVerifyRequest).claims[0], 256, 1024)
            accepted += 1
        except BadRequest as error:
            assert error.field.startswith("claims[0]")  # noqa: PT017 - either outcome is fine
    assert accepted >= 2
