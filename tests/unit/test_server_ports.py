"""Ports of servers that start while others do: nobody else gets one between its choice and its use."""

from __future__ import annotations

import socket

import pytest

from tessera.launching import ports
from tessera.launching.command import has_replicas
from tessera.launching.ports import HOST, port_of, reserve_port
from tessera_testing.free_port import free_port


def test_a_held_port_is_given_to_nobody_else_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one port in all."""
    port = free_port()
    monkeypatch.setattr(ports, "_PORTS", range(port, port + 1))
    with reserve_port():
        for ask in (reserve_port, free_port):
            with pytest.raises(RuntimeError, match="no free port"):
                ask()
    assert free_port() == port


def test_a_server_binds_the_port_that_is_held_for_it() -> None:
    """And only one does: while it listens, a second one is refused."""
    with reserve_port() as reservation:
        address = HOST, port_of(reservation)
        with socket.create_server(address), pytest.raises(OSError, match="in use"):
            socket.create_server(address)


@pytest.mark.parametrize(
    ("args", "replicas"),
    [(("--dp-size", "2"), True), (("--data-parallel-size=2",), True), (("--tp-size", "2"), False), ((), False)],
)
def test_replicas_are_known_by_their_option(args: tuple[str, ...], replicas: bool) -> None:
    """They meet at ports of their own."""
    assert has_replicas(args) == replicas
