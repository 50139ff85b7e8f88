"""A port for a test that only needs a number."""

from __future__ import annotations

from tessera.launching.ports import port_of, reserve_port


def free_port() -> int:
    """Return a port that nothing listens on now, and that nobody reserved."""
    with reserve_port() as reservation:
        return port_of(reservation)
