"""Admit a request's fields about fingerprints at the HTTP edge; see `tessera.admission`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tessera import config
from tessera.admission import (
    CLAIM_KEY,
    HASHES_KEY,
    IDS_KEY,
    STATES_KEY,
    TOPLOC_KEY,
    SamplingParams,
    asked,
    checked,
    folded,
)
from tessera.errors import BadFingerprint, BadRequest, Described
from tessera.fields import flag
from tessera.fingerprint import chunks, options
from tessera.fingerprint.options import FingerprintOptions
from tessera.limits import MAX_FINGERPRINTS
from tessera.states.options import FIELD as STATES_FIELD
from tessera.states.options import Format, StateOptions


class Fields(NamedTuple):
    """The fields, as they came; None where one is absent."""

    return_toploc_fingerprints: Any = None
    toploc_verification_fingerprint_to_validate: Any = None
    toploc_nonce: Any = None
    return_input_ids: Any = None
    return_output_ids: Any = None
    return_row_hashes: Any = None


class Server(NamedTuple):
    """What the server does.

    Attributes:
        rows: whether it keeps rows.
        always: whether it fingerprints every response.
        topk: how many values a fingerprint proves.
        deterministic: whether its arithmetic is the same bit by bit.
    """

    rows: bool
    always: bool
    topk: int
    deterministic: bool = False


def server() -> Server:
    """What this server does."""
    settings, flags = config.active, config.flags
    return Server(settings.rows, flags.toploc_verification, flags.toploc_verification_topk, settings.deterministic)


def admit(fields: Fields, params: Any, server: Server, *, tail: int = 0, either_end: bool = False) -> Any:
    """Validate the fields and return the sampling parameters that carry them.

    Args:
        fields: as they came.
        params: the request's sampling parameters: one object, one for each prompt, or none.
        server: what it does.
        tail: of a claim: how many of the prompt's last tokens its prover generated and fed back.
        either_end: `FingerprintOptions.either_end`.

    Raises:
        BadRequest: a value is not allowed, or the server does not keep rows.
    """
    nonce = options.nonce(fields.toploc_nonce)
    wanted = options.wanted(fields.return_toploc_fingerprints, default=server.always)
    shown = _shown(fields)
    if not server.rows:
        _refuse(fields)
        return checked(params)
    if shown:
        params = folded(IDS_KEY, ",".join(shown), params)
    if flag(options.HASHES_FIELD, fields.return_row_hashes):
        params = _hashes(params, server)
    if fields.toploc_verification_fingerprint_to_validate is not None:
        return _claim(fields, params or {}, server.topk, FingerprintOptions(nonce, tail, either_end))
    if wanted:
        said = fields.return_toploc_fingerprints is not None or nonce is not None
        return folded(TOPLOC_KEY, FingerprintOptions(nonce).to_wire(), params, keep=not said)
    return folded(TOPLOC_KEY, "", params) if server.always else checked(params)


def _hashes(params: Any, server: Server) -> Any:
    if not server.deterministic:
        raise BadRequest(options.HASHES_FIELD, True, "only on a server started with --enable-deterministic-inference")
    for one in params if isinstance(params, list) else [params]:
        if asked(one).states is not None:
            raise BadRequest(options.HASHES_FIELD, True, f"not together with {STATES_FIELD}")
    return folded(HASHES_KEY, "1", folded(STATES_KEY, StateOptions(format=Format.BASE64).to_wire(), params))


def _shown(fields: Fields) -> list[str]:
    asked = {
        "input": flag(options.INPUT_IDS_FIELD, fields.return_input_ids),
        "output": flag(options.OUTPUT_IDS_FIELD, fields.return_output_ids),
    }
    return [kind for kind, wanted in asked.items() if wanted]


def _refuse(fields: Fields) -> None:
    for name, value in fields._asdict().items():
        if value is not None and value is not False:
            raise BadRequest(
                name, value, "only on a server started with --enable-return-hidden-states or --toploc-verification"
            )


def _claim(fields: Fields, params: Any, topk: int, wanted: FingerprintOptions) -> SamplingParams | list[SamplingParams]:
    name, value = options.CLAIM_FIELD, fields.toploc_verification_fingerprint_to_validate
    if not isinstance(params, dict):
        raise BadRequest(name, value, "one prompt; POST /v1/toploc/verify takes many claims")
    if params.get("max_new_tokens") != 0 or params.get("n", 1) != 1:
        raise BadRequest(name, Described("a request that generates"), "max_new_tokens 0 and n 1: a prefill verifies")
    claim = options.claimed(name, value, topk, MAX_FINGERPRINTS)
    check_count(name, value, wanted)
    wire = json.dumps(claim if isinstance(value, list) else claim[0])
    return folded(CLAIM_KEY, wire, folded(TOPLOC_KEY, wanted.to_wire(), params))


def check_count(name: str, claim: object, wanted: FingerprintOptions) -> None:
    """A list holds every fingerprint of the response; a string is its last one.

    Raises:
        BadFingerprint: it has more, or fewer.
    """
    tail = wanted.tail or 0
    allowed = sorted({chunks.count(tail), chunks.count(max(tail - wanted.either_end, 0))})
    if isinstance(claim, list) and len(claim) not in allowed:
        many = " or ".join(map(str, allowed))
        raise BadFingerprint(
            name, Described(f"{len(claim)} fingerprints"), f"{many} for this response; or its last one alone"
        )
