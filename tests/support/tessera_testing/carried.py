"""What the sampling parameters of one prompt carry, as the other end reads it."""

from __future__ import annotations

from typing import Any

from tessera import carry
from tessera.capabilities import registry
from tessera.capabilities.registry import Requested


def uses(sampling_params: Any) -> Requested:
    """The capabilities and their options."""
    return registry.requested(carry.take(sampling_params).wires)


def options(sampling_params: Any) -> dict[str, Any]:
    """The options of each capability that the prompt uses, by name."""
    return {name: own for name, (_, own) in uses(sampling_params).items()}


def requested(**by_name: Any) -> Requested:
    """What a request wants that has these options."""
    return {name: (registry.BY_NAME[name], own) for name, own in by_name.items()}
