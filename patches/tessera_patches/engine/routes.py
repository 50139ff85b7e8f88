"""SGLang's HTTP routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def generate_handler() -> Callable[..., Any]:
    """What answers a ``GenerateReqInput``; since 0.5.22 the route of ``/generate`` takes bodies, and calls this."""
    from sglang.srt.entrypoints import http_server

    handler: Callable[..., Any] = getattr(http_server, "serve_generate_request", http_server.generate_request)
    return handler
