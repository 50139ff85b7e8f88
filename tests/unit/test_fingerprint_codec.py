"""Fingerprints against the ``toploc`` library 0.1.6, both ways, and against arithmetic done by hand."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.capabilities.fingerprints import codec
from tessera.capabilities.fingerprints.field import PRIME, _balanced, _positive, evaluate, interpolate
from tessera.errors import BadFingerprint
from tessera.rows.reads import Points
from tessera_testing.librarys import WHY_SKIPPED, encoded, largest

ndd: Any = pytest.importorskip("toploc.C.csrc.ndd", reason=WHY_SKIPPED, exc_type=ImportError)
poly: Any = pytest.importorskip("toploc.poly", reason=WHY_SKIPPED, exc_type=ImportError)


@pytest.mark.parametrize(
    ("hidden_size", "prompt", "generated", "k"),
    [(64, 4, 70, 128), (256, 33, 5, 128), (4096, 40, 40, 128), (16384, 3, 33, 128), (2048, 9, 64, 1), (512, 5, 0, 7)],
)
@pytest.mark.parametrize("outliers", [False, True])
def test_equal_to_the_library(hidden_size: int, prompt: int, generated: int, k: int, *, outliers: bool) -> None:
    """Byte by byte, also where a few channels hold all large values and many are equal."""
    rows = torch.randn(prompt + generated, hidden_size, generator=torch.Generator().manual_seed(k)).bfloat16()
    if outliers:
        rows[:, :: hidden_size // 4] *= 64
    expected = poly.build_proofs_base64([rows[:prompt], *rows[prompt:]], 32, k)
    assert encoded(rows, prompt, k) == expected


def test_the_library_accepts_ours() -> None:
    """Its C++ path reads the bytes and finds no difference."""
    rows = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours = codec.build([largest(chunk, 128) for chunk in rows.split(32)])
    content = [base64.b64decode(one.to_base64()) for one in ours]
    found = poly.verify_proofs_bytes(rows, content, decode_batching_size=32, topk=128, skip_prefill=True)
    assert [(one.exp_mismatches, one.mant_err_mean) for one in found] == [(0, 0), (0, 0)]


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**32))
def test_polynomials(k: int, n: int, seed: int) -> None:
    """Through its points goes each polynomial, and it is evaluated as Horner does with exact integers."""
    chooser = random.Random(seed)
    x = np.array([chooser.sample(range(PRIME), k) for _ in range(n)], float)
    y = np.array([[chooser.randrange(PRIME) for _ in range(k)] for _ in range(n)], float)
    coefficients = interpolate(x, y)
    assert (evaluate(coefficients, x) == y).all()
    elsewhere = np.array([[chooser.randrange(PRIME) for _ in range(k)] for _ in range(n)], float)
    expected = [
        ndd.evaluate_polynomials(c.astype(int).tolist(), e.astype(int).tolist())
        for c, e in zip(coefficients, elsewhere, strict=True)
    ]
    assert evaluate(coefficients, elsewhere).tolist() == expected


def test_residues_are_exact_up_to_their_bound() -> None:
    """Where floating point rounds a quotient: at multiples of the prime and halves of it, just below and above them."""
    multiples = np.random.default_rng(0).integers(-(2**53) // PRIME, 2**53 // PRIME, 100_000) * PRIME
    half = PRIME // 2
    numbers = np.concatenate([multiples + i for i in (0, 1, -1, half, half + 1)] + [-np.arange(PRIME)])
    found = _balanced(numbers.astype(float))
    assert np.abs(found).max() <= half + 1
    assert (_positive(found) == numbers % PRIME).all()


@pytest.mark.parametrize("k", [128, 256, 257, 512])
def test_large_residues_do_not_round(k: int) -> None:
    """Sums are greatest where all residues are: the powers of such a place, times coefficients with their signs."""
    half = PRIME // 2
    places = np.array([[half, half + 1, PRIME - 2, 2, *range(5, k + 1)]], float)
    for place in places[0, :4].astype(int).tolist():
        powers = [pow(place, i, PRIME) for i in range(k)]
        signs = [half if power <= half else half + 1 for power in powers]
        found = evaluate(np.array([signs], float), places)[0, places[0] == place]
        assert found.tolist() == [sum(a * b for a, b in zip(signs, powers, strict=True)) % PRIME]


def test_places_are_distinct_modulo_the_modulus() -> None:
    """Two places that are equal modulo the prime: the next smaller one under which no two are."""
    places = np.array([5, 5 + PRIME, 7, 100])
    (one,) = codec.build([Points(places, np.array([1, 2, 3, 4], np.uint16))])
    assert one.modulus == PRIME - 1
    assert codec.values_at([one], places[None]).tolist() == [[1, 2, 3, 4]]


def test_places_that_no_modulus_makes_distinct() -> None:
    """The same place twice."""
    with pytest.raises(ValueError, match="no modulus"):
        codec.build([Points(np.array([1, 1]), np.array([1, 1], np.uint16))])


def packed(*numbers: int) -> str:
    """A fingerprint of these 16-bit numbers."""
    return base64.b64encode(b"".join(number.to_bytes(2, "big") for number in numbers)).decode()


GOOD = packed(65_497, 1, 2, 3, 65_496)
BAD: list[tuple[Any, str]] = [
    ("/9k=", "2 bytes for each value"),
    ("", "2 bytes for each value"),
    (None, "a string of base64"),
    (b"/9k=", "a string of base64"),
    (["/9k="], "a string of base64"),
    ("!!!!", "base64"),
    (GOOD + "\n", "base64"),
    (GOOD[:-2] + "é=", "base64"),
    (GOOD[:-1], "base64"),
    (" " + GOOD[1:], "base64"),
    ("A" * 1000, "at most 344"),
    ("A" * 10_000_000, "at most 344"),
    (base64.b64encode(b"\xff\xd9\0\0\0").decode(), "2 bytes for each value"),
    ("/9kAAR==", "2 bytes for each value"),
    (poly.ProofPoly.null(128).to_base64(), "a modulus above 32768"),
    (packed(32_768, 1), "a modulus above 32768"),
    (packed(65_498, 1), "at most 65497"),
    (packed(65_497, 65_497), "coefficients below 65497"),
]


def test_good_is_read_as_it_was_written() -> None:
    """Modulus and coefficients."""
    read = codec.parse("f", GOOD, 128)
    assert (read.modulus, read.coefficients.tolist(), read.to_base64()) == (65_497, [1, 2, 3, 65_496], GOOD)


@pytest.mark.parametrize(("text", "allowed"), BAD, ids=lambda value: str(value)[:20])
def test_bad(text: Any, allowed: str) -> None:
    """What crashes the library, and what it lets pass, is refused by name; little of it is sent back."""
    with pytest.raises(BadFingerprint) as refused:
        codec.parse("claims[0].fingerprints[1]", text, 128)
    assert refused.value.field == "claims[0].fingerprints[1]"
    assert allowed in refused.value.allowed
    assert len(str(refused.value)) < 500


WIDE = [packed(65_497, *range(i, i + 128)) for i in range(3)]
"""Without padding, as most are."""


def one_by_one(texts: list[Any], most: int) -> list[tuple[int, list[int]]] | str:
    """What `codec.parse` says of each: what they hold, or the first error."""
    try:
        read = [codec.parse(f"f[{i}]", text, most) for i, text in enumerate(texts)]
    except BadFingerprint as error:
        return str(error)
    return [(one.modulus, one.coefficients.tolist()) for one in read]


def together(texts: list[Any], most: int) -> list[tuple[int, list[int]]] | str:
    """The same of `codec.parse_all`."""
    try:
        read = codec.parse_all("f", texts, most)
    except BadFingerprint as error:
        return str(error)
    return [(one.modulus, one.coefficients.tolist()) for one in read]


@pytest.mark.parametrize("bad", [text for text, _ in BAD], ids=lambda value: str(value)[:20])
def test_a_bad_one_among_good_ones(bad: Any) -> None:
    """The same error, with its place, wherever it is."""
    for place in range(3):
        texts: list[Any] = list(WIDE)
        texts[place] = bad
        assert isinstance(together(texts, 128), str)
        assert together(texts, 128) == one_by_one(texts, 128)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=0, max_size=12), max_size=4), st.integers(1, 5), st.booleans())
def test_all_are_read_as_each_is(contents: list[bytes], most: int, equal: bool) -> None:
    """Of any length, and all of one."""
    texts = [base64.b64encode((content * 12)[:6] if equal else content).decode() for content in contents]
    assert together(texts, most) == one_by_one(texts, most)


def test_those_without_padding_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those with it one by one."""
    expected = one_by_one(WIDE, 128)
    monkeypatch.setattr(codec, "parse", lambda *_: pytest.fail("read by itself"))
    assert together(WIDE, 128) == expected
    with pytest.raises(pytest.fail.Exception, match="read by itself"):
        codec.parse_all("f", [GOOD], 128)
