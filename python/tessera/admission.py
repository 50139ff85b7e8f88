"""Admit a request's fields at the HTTP edge and fold them into what SGLang carries to the scheduler."""

from __future__ import annotations

import itertools
import secrets
from typing import Any, NamedTuple

from tessera.embed.options import FIELD as EMBED_FIELD
from tessera.embed.options import EmbedOptions
from tessera.errors import BadRequest
from tessera.rows.span import Over
from tessera.states.options import FIELD as STATES_FIELD
from tessera.states.options import StateOptions

EMBED_KEY = "tessera_embed"
"""The key in ``sampling_params.custom_params`` under which `EmbedOptions` ride to the scheduler."""
STATES_KEY = "tessera_states"
"""The same for `StateOptions`."""
TOKEN_KEY = "tessera_token"  # noqa: S105 - a name, not a secret
"""The same for what tells this request from any other that a client may give the same id."""

_SECRET = secrets.token_hex(16)
_numbers = itertools.count()

SamplingParams = dict[str, Any]


class Asked(NamedTuple):
    """What one request asked for."""

    embed: EmbedOptions | None = None
    states: StateOptions | None = None
    token: str = ""


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
        return _checked(sampling_params)
    if not enabled:
        raise BadRequest(EMBED_FIELD, value, "only on a server started with --enable-return-hidden-states")
    if options.over is Over.OUTPUT:
        for params in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
            if isinstance(params, dict) and params.get("max_new_tokens") in (0, 1):
                raise BadRequest(f"{EMBED_FIELD}.over", str(Over.OUTPUT), "output needs max_new_tokens of 2 or more")
    return _folded(EMBED_KEY, options.to_wire(), sampling_params)


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
        return sampling_params if options is None else _folded(STATES_KEY, options.to_wire(), sampling_params)
    each = [StateOptions.parse(item, form) for item in value]
    params = sampling_params if isinstance(sampling_params, list) else [sampling_params or {}] * len(each)
    if len(params) != len(each):
        raise BadRequest(STATES_FIELD, f"{len(each)} values", f"one for each of the {len(params)} sampling_params")
    return [
        own if options is None else _fold(STATES_KEY, options.to_wire(), own)
        for options, own in zip(each, params, strict=True)
    ]


def asked(sampling_params: object) -> Asked:
    """What rides in the sampling parameters of one request.

    Raises:
        BadRequest: a client wrote a reserved key itself.
    """
    custom = sampling_params.get("custom_params") if isinstance(sampling_params, dict) else None
    if not isinstance(custom, dict) or not {EMBED_KEY, STATES_KEY, TOKEN_KEY} & set(custom):
        return Asked()
    embed, states, token = custom.get(EMBED_KEY), custom.get(STATES_KEY), custom.get(TOKEN_KEY)
    if not isinstance(token, str) or not token.startswith(_SECRET):
        reserved = f"no {EMBED_KEY}, {STATES_KEY}, {TOKEN_KEY}: use {EMBED_FIELD}, {STATES_FIELD}"
        raise BadRequest("sampling_params.custom_params", custom, reserved)
    return Asked(
        None if embed is None else EmbedOptions.from_wire(embed),
        None if states is None else StateOptions.from_wire(states),
        token,
    )


def _checked(sampling_params: Any) -> Any:
    """A client must not write a reserved key itself; what `_fold` wrote passes (SGLang copies the parameters)."""
    for params in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
        asked(params)
    return sampling_params


def _folded(key: str, wire: str, sampling_params: Any) -> SamplingParams | list[SamplingParams]:
    if isinstance(sampling_params, list):
        return [_fold(key, wire, params) for params in sampling_params]
    return _fold(key, wire, sampling_params or {})


def _fold(key: str, wire: str, params: SamplingParams) -> SamplingParams:
    if not isinstance(params, dict):
        raise BadRequest("sampling_params", params, "an object, or a list of objects")
    custom = params.get("custom_params") or {}
    if not isinstance(custom, dict):
        raise BadRequest("sampling_params.custom_params", custom, "an object")
    asked(params)
    token = custom.get(TOKEN_KEY) or f"{_SECRET}{next(_numbers)} "
    return {**params, "custom_params": {**custom, key: wire, TOKEN_KEY: token}}
