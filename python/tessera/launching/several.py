"""Several servers at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tessera.launching.server import Server


@contextmanager
def serving(servers: Sequence[Server], *, together: bool) -> Iterator[None]:
    """Start them, wait until all answer, and stop all of them at the end.

    Args:
        servers: not started yet.
        together: start all, then wait for all. On one GPU each sizes its KV pool by the memory that is free, so they
            need ``--max-total-tokens``, and a ``--mem-fraction-static`` far above what that takes. Else they are
            started one after the other.

    Raises:
        ServerStartError: one ended or was not ready in time.
    """
    begun: list[Server] = []
    try:
        for server in servers:
            begun.append(server)
            server.start()
            if not together:
                server.wait_ready()
        for server in servers if together else ():
            server.wait_ready()
        yield
    finally:
        with ThreadPoolExecutor(max(len(begun), 1)) as pool:
            list(pool.map(Server.stop, begun))
