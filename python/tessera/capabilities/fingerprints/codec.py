"""The wire format of a fingerprint, byte-compatible with the ``toploc`` library 0.1.6, and strict.

Two big-endian bytes of modulus, then k big-endian 16-bit coefficients, ascending: 2 + 2k bytes, in base64. The
polynomial over the residues of `PRIME` goes through (position modulo the modulus, bits of the value as bfloat16) of
the k values of largest magnitude among the rows that the fingerprint proves.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.capabilities.fingerprints.field import PRIME, evaluate, interpolate
from tessera.errors import BadFingerprint, Described
from tessera.rows.reads import Points

LEAST_MODULUS = 2**15
"""Moduli end above it; the library stops there too."""
_LEAST_BYTES = 4
"""A modulus and one coefficient."""

Bits = npt.NDArray[np.uint16]


class Fingerprint(NamedTuple):
    """A fingerprint that is well-formed: moduli and coefficients are in range."""

    modulus: int
    coefficients: Bits

    def to_base64(self) -> str:
        """The fingerprint as text, as answers and claims have it."""
        head = self.modulus.to_bytes(2, "big")
        return base64.b64encode(head + self.coefficients.astype(">u2").tobytes()).decode()


def encoded_length(k: int) -> int:
    """Characters of a fingerprint of k values."""
    return (2 + 2 * k + 2) // 3 * 4


def parse(field: str, text: object, most: int) -> Fingerprint:
    """Read what a client sent.

    Args:
        field: its name in the request, for the message.
        text: what came.
        most: how many values the fingerprint may prove.

    Raises:
        BadFingerprint: it is not base64, too short or too long, or a number in it is out of range.
    """
    if not isinstance(text, str):
        raise BadFingerprint(field, text, "a fingerprint: a string of base64")
    if len(text) > encoded_length(most):
        raise BadFingerprint(
            field, Described(f"{len(text)} characters"), f"at most {encoded_length(most)}, for {most} values"
        )
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadFingerprint(field, text, "base64") from error
    fits = _LEAST_BYTES <= len(content) <= 2 + 2 * most and len(content) % 2 == 0
    if not fits or base64.b64encode(content).decode() != text:
        raise BadFingerprint(field, text, "base64 of 2 bytes for each value and 2 more, with no bits to spare")
    numbers = np.frombuffer(content, ">u2").astype(np.uint16)
    modulus, largest = int(numbers[0]), int(numbers[1:].max())
    if not LEAST_MODULUS < modulus <= PRIME:
        raise BadFingerprint(
            field, Described(f"modulus {modulus}"), f"a modulus above {LEAST_MODULUS}, at most {PRIME}"
        )
    if largest >= PRIME:
        raise BadFingerprint(field, Described(f"coefficient {largest}"), f"coefficients below {PRIME}")
    return Fingerprint(modulus, numbers[1:])


def parse_all(field: str, texts: Sequence[object], most: int) -> list[Fingerprint]:
    """`parse` of each, those of one response at once: a verifier reads a thousand before its first prefill begins.

    Args:
        field: the list's name in the request, for the message.
        texts: what came.
        most: how many values each may prove.

    Raises:
        BadFingerprint: one of them is wrong; the message says which.
    """
    numbers = _of_one_length([text for text in texts if isinstance(text, str)], most)
    if numbers is None or len(numbers) != len(texts):
        return [parse(f"{field}[{i}]", text, most) for i, text in enumerate(texts)]
    return [Fingerprint(modulus, row) for modulus, row in zip(numbers[:, 0].tolist(), numbers[:, 1:], strict=True)]


def _of_one_length(texts: Sequence[str], most: int) -> Bits | None:
    """Moduli and coefficients ``[n, 1 + k]`` of well-formed fingerprints without padding; None if there are others."""
    length = len(texts[0]) if texts else 0
    each = length // 4 * 3
    fits = length % 4 == 0 and _LEAST_BYTES <= each <= 2 + 2 * most and each % 2 == 0
    if not fits or any(len(one) != length for one in texts):
        return None
    text = "".join(texts)
    if "=" in text:
        return None
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    numbers = np.frombuffer(content, ">u2").astype(np.uint16).reshape(len(texts), -1)
    moduli = numbers[:, 0]
    good = moduli.min() > LEAST_MODULUS and moduli.max() <= PRIME and numbers[:, 1:].max() < PRIME
    return numbers if good else None


def build(points: Sequence[Points]) -> list[Fingerprint]:
    """One fingerprint for each; those of equal k at once.

    Raises:
        ValueError: places are equal modulo every modulus.
    """
    found: dict[int, Fingerprint] = {}
    for k in {len(one.places) for one in points}:
        chosen = [i for i, one in enumerate(points) if len(one.places) == k]
        places = np.stack([points[i].places for i in chosen])
        moduli = _moduli(places)
        values = np.stack([points[i].bits for i in chosen]).astype(np.float64)
        coefficients = interpolate((places % moduli[:, None]).astype(np.float64), values).astype(np.uint16)
        found |= {i: Fingerprint(int(m), c) for i, m, c in zip(chosen, moduli, coefficients, strict=True)}
    return [found[i] for i in range(len(points))]


def values_at(fingerprints: Sequence[Fingerprint], places: npt.NDArray[np.int64]) -> Bits:
    """The bits ``[n, k]`` that n fingerprints of k values claim for the values at ``places`` ``[n, k]``."""
    moduli = np.array([one.modulus for one in fingerprints])
    coefficients = np.stack([one.coefficients for one in fingerprints]).astype(np.float64)
    return evaluate(coefficients, (places % moduli[:, None]).astype(np.float64)).astype(np.uint16)


def _moduli(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each row of places the largest modulus up to `PRIME` under which they stay distinct."""
    moduli = np.full(len(places), PRIME)
    left = np.arange(len(places))
    for modulus in range(PRIME, LEAST_MODULUS, -1):
        moduli[left] = modulus
        residues = np.sort(places[left] % modulus, axis=1)
        left = left[(residues[:, 1:] == residues[:, :-1]).any(axis=1)]
        if not len(left):
            return moduli
    raise ValueError("no modulus tells the places apart")
