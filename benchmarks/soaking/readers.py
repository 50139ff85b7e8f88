"""Clients that read one byte a second."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tessera.launching.ports import HOST
from tessera.launching.server import Server

SLOW_READERS = 20


@contextmanager
def slow_readers(server: Server) -> Iterator[None]:
    """Clients whose answers are larger than every buffer on the way."""
    body = {
        "input_ids": [9] * 200,
        "stream": True,
        "return_hidden_states": True,
        "sampling_params": {"max_new_tokens": 64},
    }
    content = json.dumps(body).encode()
    fields = ("Host: a", "Content-Type: application/json", f"Content-Length: {len(content)}")
    head = "\r\n".join(["POST /generate HTTP/1.1", *fields, "", ""])
    done = Event()
    sockets = []
    for _ in range(SLOW_READERS):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.connect((HOST, server.port))
        one.sendall(head.encode() + content)
        sockets.append(one)

    def read() -> None:
        while not done.wait(1.0):
            for one in sockets:
                one.setblocking(False)
                try:
                    one.recv(1)
                except BlockingIOError:
                    continue

    reader = Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        done.set()
        reader.join()
        for one in sockets:
            one.close()
