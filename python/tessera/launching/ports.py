"""Ports that are free, and stay so until a server binds them."""

import random
import socket

HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)


def reserve_port() -> socket.socket:
    """Return a socket bound to a port that is free; while it is open, no other call returns the same port.

    A server can still bind it, for servers allow that their address is reused (``SO_REUSEADDR``), as this socket does
    once it has found that nobody has the port. A server binds it many seconds later. So it is none that the system
    would give to a connection meanwhile: those begin at 32,768 (``net.ipv4.ip_local_port_range``).

    Raises:
        RuntimeError: no port is free.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        reservation = socket.socket()
        try:
            reservation.bind((HOST, port))
        except OSError:
            reservation.close()
            continue
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reservation
    raise RuntimeError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def port_of(reservation: socket.socket) -> int:
    """Return the port that a socket is bound to."""
    return int(reservation.getsockname()[1])
