"""From the values of largest magnitude, as they come from the scheduler, to the fields of the answer."""

import json
from collections.abc import Awaitable, Sequence

from tessera.capabilities.fingerprints import codec, verifier
from tessera.capabilities.fingerprints.builder import shared_builder
from tessera.capabilities.fingerprints.codec import Fingerprint
from tessera.capabilities.fingerprints.options import CLAIM_FIELD, FingerprintOptions
from tessera.errors import BadFingerprint, Described
from tessera.limits import MAX_TOPK
from tessera.rows.chunks import count
from tessera.rows.reads import Points

FINGERPRINTS = "toploc_verification_fingerprints"
RESULT = "toploc_verification_fingerprint_validation_result"
UNVERIFIABLE = "unverifiable"
"""The verdict of a claim that cannot be run."""


async def collect_fingerprints(pending: Sequence[Awaitable[list[str]]]) -> list[str]:
    """``toploc_verification_fingerprints`` of what was begun, in order."""
    return [text for part in pending for text in await part]


async def validate_claim(claim: str | tuple[str, ...], points: Sequence[Points], options: FingerprintOptions) -> str:
    """``toploc_verification_fingerprint_validation_result``: the distance of each claimed fingerprint.

    Args:
        claim: the last fingerprint, or all of them.
        points: the verifier's own values of each chunk; with ``either_end`` the last chunk of the shorter response
            follows.
        options: of the request.

    Raises:
        BadFingerprint: a fingerprint proves another number of values than the rows have.
    """
    texts = [claim] if isinstance(claim, str) else list(claim)
    own, shorter = (points[:-1], points[-1]) if options.either_end and options.tail else (points, None)
    read = codec.parse_all(CLAIM_FIELD, texts, MAX_TOPK)
    candidates = [own[-len(read) :]] if len(read) <= len(own) else []
    if shorter is not None:
        ends = _without_last_row(own, shorter, options.tail)
        candidates += [ends[-len(read) :]] if len(read) <= len(ends) else []
    fitting = [one for one in candidates if all(map(_fits, read, one))]
    if not fitting:
        raise BadFingerprint(
            CLAIM_FIELD, Described(_lengths(read)), f"fingerprints of {_wanted(own[-len(read) :])} values"
        )
    measured = [await shared_builder().verify(read, one) for one in fitting]
    nearest = min(measured, key=lambda found: sum(one.exp_mismatches for one in found))
    return verifier.as_text(nearest, one=isinstance(claim, str))


def without_result(reason: str) -> dict[str, str]:
    """The field of the answer to a claim that cannot be run, with the reason."""
    return {RESULT: json.dumps({"verdict": UNVERIFIABLE, "reason": reason})}


def _without_last_row(own: Sequence[Points], shorter: Points, tail: int) -> Sequence[Points]:
    """The chunks of a response that fed back one token less: its last chunk is one row shorter, or is not there."""
    return [*own[: count(tail - 1) - 1], shorter]


def _fits(fingerprint: Fingerprint, own: Points) -> bool:
    return len(fingerprint.coefficients) == len(own.places)


def _lengths(read: Sequence[Fingerprint]) -> str:
    return f"fingerprints of {', '.join(sorted({str(len(one.coefficients)) for one in read}))} values"


def _wanted(own: Sequence[Points]) -> str:
    return ", ".join(sorted({str(len(one.places)) for one in own}))
