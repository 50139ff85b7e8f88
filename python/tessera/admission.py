"""Admit a request's fields at the HTTP edge and fold them into what SGLang carries to the scheduler."""

from collections.abc import Mapping
from typing import Any

from tessera import carry, config
from tessera.capabilities.registry import BY_NAME, CAPABILITIES, LISTED, any_always
from tessera.capability import IncomingRequest, Server
from tessera.carry import Live
from tessera.errors import BadRequest, Described


def server() -> Server:
    """What this server can answer, from its options and its model."""
    settings = config.active
    return Server(settings.rows, config.flags, settings.hidden_size, settings.deterministic)


def extend(field: str, prompt: Any, given: Mapping[str, Any]) -> tuple[Any, int]:
    """See `tessera.capability.Capability.extend`; of all capabilities."""
    tail = 0
    for capability in CAPABILITIES:
        prompt, added = capability.extend(field, prompt, given)
        tail += added
    return prompt, tail


def admit(
    fields: Mapping[str, Any],
    sampling_params: Any,
    of: Server,
    *,
    tail: int | None = 0,
    either_end: bool = False,
    where: str = "",
) -> tuple[Any, Live]:
    """Check the fields of a request that are ours.

    Args:
        fields: all of its fields, as they came.
        sampling_params: SGLang's: one object, one for each prompt, or none.
        of: what it is asked of.
        tail: how many of the prompt's last tokens are an answer that is verified; None where no one knows, and the
            request is not run.
        either_end: whether its prover may have fed back one token less.
        where: what stands before the names of fields in messages.

    Returns:
        The sampling parameters, which carry what the request asks for; as they came where it asks for nothing, unless
        it declines what every request has. And what the main process keeps of it: to be held until the answer was sent.

    Raises:
        BadRequest: a value is not allowed, or not on this server.
    """
    listed = isinstance(sampling_params, list)
    params = [carry.check_params(own) for own in carry.each(sampling_params)]
    for own in params:
        carry.take(own)
    for name in LISTED if listed else ():
        _check_count(name, fields.get(name), len(params))
    live = Live()
    request = IncomingRequest(params, listed, of, live, tail, either_end, where, fields)
    found = {capability.name: capability.options_of(request) for capability in CAPABILITIES}
    found = {name: options for name, options in found.items() if options}
    if not found and not any_always(of):
        return sampling_params, live
    count = max(map(len, found.values()), default=1)
    if count > 1 and not listed:
        params = params * count
    carried = []
    for i, own in enumerate(params):
        uses = {name: options[i if len(options) > 1 else 0] for name, options in found.items()}
        used = {name: options for name, options in uses.items() if options is not None}
        wires = {name: BY_NAME[name].to_wire(options) for name, options in used.items()}
        verified = [BY_NAME[name].verified(options) for name, options in used.items()]
        mark = next((one for one in verified if one is not None), None)
        carried.append(carry.put(own, live, wires, **{carry.TAIL: mark}))
    return (carried if listed or count > 1 else carried[0]), live


def _check_count(name: str, value: object, prompts: int) -> None:
    if isinstance(value, list) and len(value) != prompts:
        raise BadRequest(name, Described(f"{len(value)} values"), f"one for each of the {prompts} sampling_params")
