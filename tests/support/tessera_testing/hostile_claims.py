"""Claims of fingerprints as nobody honest sends them, for the tests that send them."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

CRASHING = ["/9k=", "!!!!", "AAAA", "A" * 344, base64.b64encode(bytes(258)).decode(), "", "=", "====", "\x00" * 344]
"""What ends the process of the library, or its neighbours. The fifth has modulus 0."""

JUNK: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**63, 2**70, "x", "x" * 1000, [], [[]], {}, {"a": 1}),
    *([None], [-1], [1024], [2**63], ["1"], [1.0], [True]),
]
"""TemporaryFields that no field of a claim takes."""


def fingerprint(chooser: random.Random, k: int = 128) -> str:
    """One that is well-formed."""
    numbers = [chooser.randrange(2**15 + 1, 65_498), *(chooser.randrange(65_497) for _ in range(k))]
    return base64.b64encode(np.array(numbers, ">u2").tobytes()).decode()


def mutated(chooser: random.Random) -> Any:
    """A fingerprint with some damage, garbage, or something that is no text; of eight about one is whole."""
    text = fingerprint(chooser)
    place = chooser.randrange(len(text))
    other = chr(chooser.choice([0, 10, 32, 61, 0xE9, 0xD800, 0x1F600, chooser.randrange(128)]))
    junk = [None, True, -1, 1e308, float("nan"), [], {}, [text], {"a": text}, text * chooser.randrange(5)]
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


def known_claims(good: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A good claim with one thing or another wrong: what crashes the library first, then what is large.

    Args:
        good: with the keys of a claim of fingerprints, and no more.
    """
    prints = good["fingerprints"]
    for one in CRASHING:
        yield {**good, "fingerprints": [*prints[:-1], one]}
        yield {**good, "fingerprints": [one] * len(prints)}
    yield {**good, "fingerprints": [*prints, prints[0]]}
    yield {**good, "fingerprints": prints[:-1]}
    yield {**good, "fingerprints": [prints[0]] * 100_000}
    yield {**good, "fingerprints": ["A" * 10_000_000] * len(prints)}
    for key in [*good, "nonce", "sampling", "row_hashes", "input_embed_overrides", "extra", "\ud800"]:
        for value in JUNK:
            yield {**good, key: value}
    for key in good:
        yield {name: value for name, value in good.items() if name != key}


def random_claim(chooser: random.Random, good: dict[str, Any]) -> dict[str, Any]:
    """A good claim with some fingerprints, or tokens, damaged."""
    claim = dict(good)
    if chooser.random() < 0.8:
        whole = good["fingerprints"]
        share = chooser.choice([0.1, 0.5, 1.0])
        claim["fingerprints"] = [mutated(chooser) if chooser.random() < share else one for one in whole]
    if chooser.random() < 0.3:
        key = chooser.choice(["input_ids", "output_ids"])
        ids = list(good[key])
        ids[chooser.randrange(len(ids))] = chooser.choice([7, 900, -1, 1024, 2**31, None, "1", 1.0, True])
        claim[key] = ids[: chooser.choice([0, 1, len(ids) // 2, len(ids), len(ids)])]
    if chooser.random() < 0.2:
        claim["nonce"] = "n" * chooser.randrange(200) or None
    if chooser.random() < 0.1:
        claim["sampling"] = {chooser.choice(["temperature", "top_p", "top_k", "seed", "x"]): chooser.choice(JUNK)}
    return claim
