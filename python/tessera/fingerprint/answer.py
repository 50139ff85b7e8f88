"""From the values of largest magnitude, as they come from the scheduler, to the fields of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.errors import BadFingerprint, Described
from tessera.fingerprint import codec, verifier
from tessera.fingerprint.builder import shared
from tessera.fingerprint.chunks import count
from tessera.fingerprint.codec import Fingerprint, Points
from tessera.fingerprint.options import CLAIM_FIELD, FingerprintOptions
from tessera.fingerprint.verifier import Distance
from tessera.limits import MAX_TOPK

if TYPE_CHECKING:  # the client wants the names of fields, and has nothing of the server's
    from tessera.delivery.outcome import Delivered

FINGERPRINTS = "toploc_verification_fingerprints"
RESULT = "toploc_verification_fingerprint_validation_result"


def begun(delivered: Delivered) -> Delivered:
    """Begin to build the fingerprints of what has arrived."""
    return delivered._replace(building=shared().build(delivered.points)) if delivered.points else delivered


async def built(parts: Sequence[Delivered]) -> list[str]:
    """``toploc_verification_fingerprints`` of these parts, in order."""
    return [text for part in parts if part.building is not None for text in await part.building]


async def validated(claim: str | tuple[str, ...], points: Sequence[Points], options: FingerprintOptions) -> str:
    """``toploc_verification_fingerprint_validation_result``.

    Raises:
        BadFingerprint: a fingerprint proves another number of values than the rows have.
    """
    found = await measured(claim, points, options)
    return verifier.as_text(found, one=isinstance(claim, str))


async def measured(
    claim: str | tuple[str, ...], points: Sequence[Points], options: FingerprintOptions, field: str = CLAIM_FIELD
) -> list[Distance]:
    """The distance of each claimed fingerprint.

    Args:
        claim: the last fingerprint, or all of them.
        points: the verifier's own values of each chunk; with ``either_end`` the last chunk of the shorter response
            follows.
        options: of the request.
        field: the claim's name in the request.

    Raises:
        BadFingerprint: a fingerprint proves another number of values than the rows have.
    """
    texts = [claim] if isinstance(claim, str) else list(claim)
    own, shorter = (points[:-1], points[-1]) if options.either_end and options.tail else (points, None)
    read = codec.parse_all(field, texts, MAX_TOPK)
    candidates = [own[-len(read) :]] if len(read) <= len(own) else []
    if shorter is not None:
        ends = _ended_sooner(own, shorter, options.tail or 0)
        candidates += [ends[-len(read) :]] if len(read) <= len(ends) else []
    fitting = [one for one in candidates if all(map(_fits, read, one))]
    if not fitting:
        raise BadFingerprint(field, Described(_lengths(read)), f"fingerprints of {_wanted(own[-len(read) :])} values")
    measured = [await shared().verify(read, one) for one in fitting]
    return min(measured, key=lambda found: sum(one.exp_mismatches for one in found))


def _ended_sooner(own: Sequence[Points], shorter: Points, tail: int) -> Sequence[Points]:
    """The chunks of a response that fed back one token less: its last chunk is one row shorter, or is not there."""
    return [*own[: count(tail - 1) - 1], shorter]


def _fits(fingerprint: Fingerprint, own: Points) -> bool:
    return len(fingerprint.coefficients) == len(own.places)


def _lengths(read: Sequence[Fingerprint]) -> str:
    return f"fingerprints of {', '.join(sorted({str(len(one.coefficients)) for one in read}))} values"


def _wanted(own: Sequence[Points]) -> str:
    return ", ".join(sorted({str(len(one.places)) for one in own}))
