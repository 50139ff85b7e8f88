"""Which tests stay in one process: those of one server, and of servers that a test needs together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Place = tuple[int, str]
"""A server: the place of its fixture in the order of all, and the fixture's parameter, or ""."""


def groups_of(needed: Iterable[Sequence[Place]]) -> dict[Place, Place]:
    """The group of each server, named by the first one in it.

    Args:
        needed: the servers of each test.
    """
    first: dict[Place, Place] = {}
    for places in needed:
        groups = {first.setdefault(place, place) for place in places}
        if len(groups) > 1:
            least = min(groups)
            first.update({place: least for place, group in first.items() if group in groups})
    return first
