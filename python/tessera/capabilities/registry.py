"""The list of capabilities. A new one is a folder beside this file, and a line here."""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera import carry
from tessera.capabilities.embed.capability import Embed
from tessera.capabilities.fingerprints.capability import Fingerprints
from tessera.capabilities.inject.capability import Inject
from tessera.capabilities.row_hashes.capability import RowHashes
from tessera.capabilities.states.capability import States
from tessera.capabilities.token_ids.capability import TokenIds
from tessera.capability import Capability, Server
from tessera.carry import Live

CAPABILITIES: tuple[Capability[Any, Any], ...] = (
    Inject(),
    Embed(),
    States(),
    TokenIds(),
    RowHashes(),
    Fingerprints(),
)
"""In the order in which their fields are checked."""

BY_NAME = {capability.name: capability for capability in CAPABILITIES}

LISTED = tuple(name for capability in CAPABILITIES for name in capability.listed)
"""Fields that may be a list, with one value for each prompt."""

WITHOUT_TOKENS = tuple(name for capability in CAPABILITIES for name in capability.without_tokens)
"""Fields that ask for something of a request that generates nothing."""

Requested = Mapping[str, tuple[Capability[Any, Any], Any]]
"""The capabilities that a prompt uses, and the options of each, by name."""


def requested(wires: Mapping[str, str], live: Live | None = None) -> Requested:
    """The capabilities that a prompt uses, from `tessera.carry.Carried.wires`; `live` keeps what was decoded before."""
    decoded = {} if live is None else live.decoded
    for name, wire in wires.items():
        if (name, wire) not in decoded:
            decoded[name, wire] = BY_NAME[name].from_wire(wire)
    return {name: (BY_NAME[name], decoded[name, wire]) for name, wire in wires.items()}


def carried_by(sampling_params: object) -> Requested:
    """What the prompt with these sampling parameters uses. Main process."""
    carried = carry.take(sampling_params)
    return requested(carried.wires, carry.find(carried.token))


def awaited(uses: Requested) -> bool:
    """Whether something that only the scheduler can read belongs to the answer."""
    return any(capability.awaits(options) for capability, options in uses.values())


def any_always(server: Server) -> bool:
    """Whether requests of this server use something that they need not ask for."""
    return any(capability.always(server) for capability in CAPABILITIES)


def declared_fields(*, openai: bool) -> Iterator[tuple[str, Any]]:
    """Name and default of each field of requests: on OpenAI's routes, or on ``/generate``."""
    for capability in CAPABILITIES:
        for name, default, extra in capability.declared():
            if not (openai and extra.get("generate")):
                yield name, default
