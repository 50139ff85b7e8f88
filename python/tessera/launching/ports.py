"""Ports that are free, and stay so until a server binds them."""

import random
import socket

HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)


def hold_port() -> socket.socket:
    """Return a socket bound to a port that is free; while it is open, no other call returns the same port.

    A server can still bind it, for servers allow that their address is reused (``SO_REUSEADDR``), as this socket does
    once it has found that nobody has the port. A server binds it many seconds later. So it is none that the system
    would give to a connection meanwhile: those begin at 32,768 (``net.ipv4.ip_local_port_range``).

    Raises:
        RuntimeError: no port is free.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        holder = socket.socket()
        try:
            holder.bind((HOST, port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    raise RuntimeError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def free_port() -> int:
    """Return a port that nothing listens on now, and that nobody holds."""
    with hold_port() as holder:
        return port_of(holder)


def port_of(holder: socket.socket) -> int:
    """Return the port that a socket is bound to."""
    return int(holder.getsockname()[1])
