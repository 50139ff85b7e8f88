"""Admit a request's fields at the HTTP edge and fold them into what SGLang carries to the scheduler."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any, NamedTuple

from tessera.embed.options import FIELD as EMBED_FIELD
from tessera.embed.options import EmbedOptions
from tessera.errors import BadRequest, Described
from tessera.fingerprint import options as toploc
from tessera.fingerprint.options import FingerprintOptions
from tessera.rows.span import Over
from tessera.states.options import FIELD as STATES_FIELD
from tessera.states.options import StateOptions

EMBED_KEY = "tessera_embed"
"""The key in ``sampling_params.custom_params`` under which `EmbedOptions` ride to the scheduler."""
STATES_KEY = "tessera_states"
"""The same for `StateOptions`."""
TOPLOC_KEY = "tessera_toploc"
"""The same for `FingerprintOptions`; "" where the request wants none though the server makes them by default."""
CLAIM_KEY = "tessera_claim"
"""The same for the fingerprints that are to be verified: a JSON list, or one string. The scheduler looks only whether
it is there."""
IDS_KEY = "tessera_ids"
"""The same for which token ids the answer shows: "input", "output" or "input,output"."""
READ_KEY = "tessera_read"
"""The same for a prompt that only the scheduler knows: "1" has it send the prompt's ids with the rows."""
HASHES_KEY = "tessera_hashes"
"""The same for hashes of rows: "1"."""
TOKEN_KEY = "tessera_token"  # noqa: S105 - a name, not a secret
"""The same for what tells this request from any other that a client may give the same id."""

KEYS = {
    EMBED_KEY: EMBED_FIELD,
    STATES_KEY: STATES_FIELD,
    TOPLOC_KEY: toploc.FIELD,
    CLAIM_KEY: toploc.CLAIM_FIELD,
    IDS_KEY: toploc.INPUT_IDS_FIELD,
    READ_KEY: "",
    HASHES_KEY: toploc.HASHES_FIELD,
    TOKEN_KEY: "",
}
"""Each reserved key, and the field that a client uses instead."""
_SECRET = secrets.token_hex(16)
_numbers = itertools.count()

SamplingParams = dict[str, Any]


class Asked(NamedTuple):
    """What one request asked for.

    Attributes:
        embed: pooled embeddings.
        states: raw states.
        fingerprints: fingerprints, or their verification.
        claim: the fingerprints that are verified: one, or a tuple.
        ids: which token ids are shown: "input", "output".
        read: whether the input ids come from the scheduler.
        hashes: hashes of rows.
        token: tells this request from any other.
    """

    embed: EmbedOptions | None = None
    states: StateOptions | None = None
    fingerprints: FingerprintOptions | None = None
    claim: str | tuple[str, ...] | None = None
    ids: tuple[str, ...] = ()
    read: bool = False
    hashes: bool = False
    token: str = ""

    @property
    def proven(self) -> bool:
        """Whether fingerprints of the answer are built, not verified."""
        return self.fingerprints is not None and self.claim is None

    @property
    def rows(self) -> bool:
        """Whether an outcome of the row store belongs to the answer."""
        return self.embed is not None or self.states is not None or self.fingerprints is not None or self.read


def admit_embedding(value: object, sampling_params: Any, *, enabled: bool, hidden_size: int | None) -> Any:
    """Validate ``return_embedding`` and return the sampling parameters that carry it.

    Args:
        value: the request's field, as it came.
        sampling_params: the request's sampling parameters: one object, one for each prompt, or none.
        enabled: whether the server keeps rows.
        hidden_size: H of the model, if known, to bound ``dimensions``.

    Raises:
        BadRequest: a value is not allowed, or the server does not keep rows.
    """
    options = EmbedOptions.parse(value, hidden_size)
    if options is None:
        return checked(sampling_params)
    if not enabled:
        raise BadRequest(EMBED_FIELD, value, "only on a server started with --enable-return-hidden-states")
    if options.over is Over.OUTPUT:
        for params in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
            if isinstance(params, dict) and params.get("max_new_tokens") in (0, 1):
                raise BadRequest(f"{EMBED_FIELD}.over", str(Over.OUTPUT), "output needs max_new_tokens of 2 or more")
    return folded(EMBED_KEY, options.to_wire(), sampling_params)


def admit_states(value: object, form: object, sampling_params: Any) -> SamplingParams | list[SamplingParams] | None:
    """Validate ``return_hidden_states`` and ``hidden_states_format`` of a server that keeps rows.

    Args:
        value: for all prompts, or a list with one for each.
        form: ``hidden_states_format``, for all.
        sampling_params: as `admit_embedding`.

    Raises:
        BadRequest: a value is not allowed.
    """
    if not isinstance(value, list):
        options = StateOptions.parse(value, form)
        return sampling_params if options is None else folded(STATES_KEY, options.to_wire(), sampling_params)
    each = [StateOptions.parse(item, form) for item in value]
    params = sampling_params if isinstance(sampling_params, list) else [sampling_params or {}] * len(each)
    if len(params) != len(each):
        raise BadRequest(
            STATES_FIELD, Described(f"{len(each)} values"), f"one for each of the {len(params)} sampling_params"
        )
    return [
        own if options is None else _fold(STATES_KEY, options.to_wire(), own)
        for options, own in zip(each, params, strict=True)
    ]


def check_prompts(field: str, value: object, vocabulary: int) -> None:
    """Refuse prompts without tokens, and token ids that the model does not have: they end SGLang's scheduler.

    Args:
        field: the request's field.
        value: token ids, or a list of them; anything else is not looked at.
        vocabulary: how many token ids there are; 0 where the model is not known yet.

    Raises:
        BadRequest: a prompt is empty, or an id is negative or too large.
    """
    if not isinstance(value, list):
        return
    several = bool(value) and isinstance(value[0], list)
    for i, ids in enumerate(value if several else [value]):
        name = f"{field}[{i}]" if several else field
        if not ids:
            raise BadRequest(name, ids, "at least one token id")
        # Passes in C; the loop that finds the culprit runs only where there is one. A boolean is an integer in Python.
        kinds = set(map(type, ids)) if vocabulary and isinstance(ids, list) else set()
        if kinds <= {int, bool} and kinds and (bool in kinds or not 0 <= min(ids) <= max(ids) < vocabulary):
            at = next(at for at, token in enumerate(ids) if type(token) is bool or not 0 <= token < vocabulary)
            raise BadRequest(f"{name}[{at}]", ids[at], f"a token id, 0 to {vocabulary - 1}")


def asked(sampling_params: object) -> Asked:
    """What rides in the sampling parameters of one request.

    Raises:
        BadRequest: a client wrote a reserved key itself.
    """
    custom = sampling_params.get("custom_params") if isinstance(sampling_params, dict) else None
    if not isinstance(custom, dict) or not KEYS.keys() & custom.keys():
        return Asked()
    token = custom.get(TOKEN_KEY)
    if not isinstance(token, str) or not token.startswith(_SECRET):
        reserved = f"no {', '.join(KEYS)}: use {', '.join(filter(None, KEYS.values()))}"
        raise BadRequest("sampling_params.custom_params", custom, reserved)
    embed, states, fingerprints = custom.get(EMBED_KEY), custom.get(STATES_KEY), custom.get(TOPLOC_KEY)
    ids = custom.get(IDS_KEY)
    return Asked(
        None if embed is None else EmbedOptions.from_wire(embed),
        None if states is None else StateOptions.from_wire(states),
        FingerprintOptions.from_wire(fingerprints) if fingerprints else None,
        _claim(custom.get(CLAIM_KEY)),
        tuple(ids.split(",")) if ids else (),
        custom.get(READ_KEY) is not None,
        custom.get(HASHES_KEY) is not None,
        token,
    )


def generated(wanted: Asked) -> int:
    """How many of the last tokens of a prompt that is verified its prover generated: none of them was injected."""
    return 0 if wanted.fingerprints is None else wanted.fingerprints.tail or 0


def _claim(wire: str | None) -> str | tuple[str, ...] | None:
    value = None if wire is None else json.loads(wire)
    return tuple(value) if isinstance(value, list) else value


def checked(sampling_params: Any) -> Any:
    """A client must not write a reserved key itself; what `_fold` wrote passes (SGLang copies the parameters)."""
    for params in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
        asked(params)
    return sampling_params


def folded(key: str, wire: str, sampling_params: Any, *, keep: bool = False) -> SamplingParams | list[SamplingParams]:
    """Put one value into the custom parameters of each prompt; with ``keep`` one that is there already stays.

    Raises:
        BadRequest: the sampling parameters are none.
    """
    if isinstance(sampling_params, list):
        return [_fold(key, wire, params, keep=keep) for params in sampling_params]
    return _fold(key, wire, sampling_params or {}, keep=keep)


def tagged(params: SamplingParams) -> SamplingParams:
    """With the token that tells this request from any other, if it has none yet."""
    custom = params.get("custom_params") or {}
    token = custom.get(TOKEN_KEY) or f"{_SECRET}{next(_numbers)} "
    return {**params, "custom_params": {**custom, TOKEN_KEY: token}}


def _fold(key: str, wire: str, params: SamplingParams, *, keep: bool = False) -> SamplingParams:
    if not isinstance(params, dict):
        raise BadRequest("sampling_params", params, "an object, or a list of objects")
    custom = params.get("custom_params")
    custom = {} if custom is None else custom
    if not isinstance(custom, dict):
        raise BadRequest("sampling_params.custom_params", custom, "an object")
    asked(params)
    if keep and key in custom:
        return params
    return tagged({**params, "custom_params": {**custom, key: wire}})
