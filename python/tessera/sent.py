"""A request as its client sent it, from what rides in its sampling parameters: for SGLang's logs, records and dumps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tessera.admission import KEYS, asked
from tessera.embed.options import FIELD as EMBED_FIELD
from tessera.fingerprint import options as toploc
from tessera.inject import carry
from tessera.inject.options import FIELD as OVERRIDES_FIELD
from tessera.rows.span import Over
from tessera.states.options import FIELD as STATES_FIELD
from tessera.states.options import FORMAT_FIELD, StateOptions

_RESERVED = frozenset((*KEYS, carry.KEY))


def carries(sampling_params: Any) -> bool:
    """Whether one of these sampling parameters carries something of ours."""
    each = sampling_params if isinstance(sampling_params, list) else [sampling_params]
    return any(not _RESERVED.isdisjoint(_custom(params)) for params in each)


def plain(sampling_params: Any) -> Any:
    """The same parameters without what is ours; a secret is among it."""
    if isinstance(sampling_params, list):
        return [plain(params) for params in sampling_params]
    if not carries(sampling_params):
        return sampling_params
    return {**sampling_params, "custom_params": plain_custom(sampling_params["custom_params"])}


def plain_custom(custom_params: dict[str, Any]) -> dict[str, Any] | None:
    """Custom parameters without what is ours; None where nothing is left."""
    return {key: value for key, value in custom_params.items() if key not in _RESERVED} or None


def fields(sampling_params: Any) -> dict[str, Any]:
    """Our fields of a request with these parameters, as JSON has them; lists where its prompts differ.

    Vectors are left out: only that there are some is said.
    """
    if not isinstance(sampling_params, list):
        return _fields(sampling_params)
    each = [_fields(params) for params in sampling_params]
    names = dict.fromkeys(name for found in each for name in found)
    several = {name: [found.get(name) for found in each] for name in names}
    return {name: own[0] if own.count(own[0]) == len(own) else own for name, own in several.items()}


def _fields(params: Any) -> dict[str, Any]:
    wanted, overrides = asked(params), carry.carried(params)
    found: dict[str, Any] = dict.fromkeys((f"return_{kind}_ids" for kind in wanted.ids), True)
    if wanted.embed is not None:
        found[EMBED_FIELD] = asdict(wanted.embed)
    if wanted.states is not None:
        found |= {STATES_FIELD: _states(wanted.states), FORMAT_FIELD: wanted.states.format}
    if wanted.fingerprints is not None:
        claimed = {toploc.FIELD: True} if wanted.claim is None else {toploc.CLAIM_FIELD: wanted.claim}
        found |= claimed | {toploc.NONCE_FIELD: wanted.fingerprints.nonce}
    if wanted.hashes:
        found[toploc.HASHES_FIELD] = True
    if overrides is not None:
        found[OVERRIDES_FIELD] = "(vectors)"
    return found


def _states(options: StateOptions) -> Any:
    if options.last:
        return "last"
    if options.positions is not None:
        return {"positions": list(options.positions)}
    return True if options.over is Over.ALL else {"over": options.over}


def _custom(params: Any) -> Any:
    custom = params.get("custom_params") if isinstance(params, dict) else None
    return custom if isinstance(custom, dict) else {}
