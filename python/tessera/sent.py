"""A request as its client sent it, from what rides in its sampling parameters: for SGLang's logs, records and dumps."""

from typing import Any

from tessera import carry
from tessera.capabilities import registry


def carries(sampling_params: Any) -> bool:
    """Whether one of these sampling parameters carries one of our fields."""
    return any(carry.take(own) is not carry.NOTHING for own in carry.each(sampling_params))


def plain(sampling_params: Any) -> Any:
    """The same parameters without what is ours; a secret is among it."""
    if isinstance(sampling_params, list):
        return [plain(params) for params in sampling_params]
    if not carries(sampling_params):
        return sampling_params
    return {**sampling_params, "custom_params": carry.without(sampling_params["custom_params"])}


def fields(sampling_params: Any) -> dict[str, Any]:
    """Our fields of a request with these parameters, as JSON has them; lists where its prompts differ."""
    if not isinstance(sampling_params, list):
        return _fields(sampling_params)
    each = [_fields(params) for params in sampling_params]
    names = dict.fromkeys(name for found in each for name in found)
    several = {name: [found.get(name) for found in each] for name in names}
    return {name: own[0] if own.count(own[0]) == len(own) else own for name, own in several.items()}


def _fields(params: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for capability, options in registry.carried_by(params).values():
        found |= capability.sent(options)
    return found
