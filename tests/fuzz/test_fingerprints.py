"""Hostile fingerprints and claims: each is answered or refused by name, at once; nothing else is raised."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tessera import config
from tessera.errors import BadRequest
from tessera.fingerprint import codec
from tessera.fingerprint.codec import Points
from tessera.fingerprint.verifier import distances
from tessera.http import claims

INPUTS = 20_000
CRASHING = ["/9k=", "!!!!", "AAAA", "A" * 344, base64.b64encode(bytes(258)).decode(), "", "=", "====", "\x00" * 344]
"""What ends the process of the library, or its neighbours."""


def fingerprint(chooser: random.Random, k: int = 128) -> str:
    """One that is well-formed."""
    numbers = [chooser.randrange(2**15 + 1, 65_498), *(chooser.randrange(65_497) for _ in range(k))]
    return base64.b64encode(np.array(numbers, ">u2").tobytes()).decode()


def mutated(chooser: random.Random) -> Any:
    """A fingerprint with some damage, garbage, or something that is no text; of eight about one is whole."""
    text = fingerprint(chooser)
    place = chooser.randrange(len(text))
    other = chr(chooser.choice([0, 10, 32, 61, 0xE9, 0xD800, 0x1F600, chooser.randrange(128)]))
    junk = [None, True, -1, 1e308, float("nan"), [], {}, [text], {"a": text}, b"x", text * chooser.randrange(5)]
    length = chooser.choice([0, 1, 2, 3, 4, 257, 258, 259, 260, 1026])
    ways: list[Any] = [
        text[:place],
        text[:place] + other + text[place + 1 :],
        base64.b64encode(chooser.randbytes(length)).decode(),
        chooser.choice(CRASHING),
        chooser.choice(junk),
        fingerprint(chooser, chooser.choice([1, 127, 129, 512, 513])),
        text + chooser.choice(["=", "\n", " ", "A", "AAAA"]),
        text,
    ]
    return chooser.choice(ways)


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
    junk: list[Any] = [
        None,
        True,
        0,
        -1,
        1.5,
        2**70,
        "x",
        "x" * 1000,
        [],
        [[]],
        {},
        {"a": 1},
        [None],
        [-1],
        [1024],
        [2**63],
        ["1"],
        [1.0],
        [True],
    ]
    for key in [*good, "nonce", "extra", "\ud800"]:
        for value in junk:
            yield {**good, key: value}
    for key in good:
        yield {name: value for name, value in good.items() if name != key}
    for i in range(2000):
        yield {**good, "fingerprints": [mutated(chooser) for _ in range(3)], "nonce": "n" * (i % 200) or None}
    yield {**good, "fingerprints": ["A" * 10_000_000] * 3}
    yield {**good, "fingerprints": [fingerprint(chooser)] * 100_000}
    yield good


@pytest.mark.usefixtures("served")
def test_claims() -> None:
    """No claim takes long, and none raises anything but a refusal that names a field of its own."""
    accepted = 0
    for body in bodies(random.Random(4)):
        begin = time.monotonic()
        try:
            claims.read_claim("claims[0]", body, 256, 1024)
            accepted += 1
        except BadRequest as error:
            assert error.field.startswith("claims[0]")  # noqa: PT017 - either outcome is fine
        assert time.monotonic() - begin < 2
    assert accepted >= 2
