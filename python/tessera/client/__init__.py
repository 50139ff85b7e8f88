"""The client library: generate, embed and verify over HTTP, or with a model in this process, by one interface.

It needs httpx and numpy only (``pip install '.[client]'`` in a checkout), neither SGLang nor torch.

Example::

    with connect("http://127.0.0.1:30000") as client:
        for candidate in client.generate_candidates("def add(a, b):", n=8):
            print(candidate.log_prob, candidate.text)
        vectors = client.encode_batch(["import os", "class Stack:"]).numpy()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera.client.connect import connect
from tessera.client.errors import (
    ClientError,
    ConnectionFailed,
    HiddenStatesUnsupported,
    HttpError,
    InvalidResponse,
    NotApplied,
    RateLimited,
    RequestRefused,
    RequestTimeout,
    ServerError,
    StatusError,
    Unauthorized,
    Unsupported,
)
from tessera.client.injection import Injection
from tessera.client.interface import Inference
from tessera.client.options import Timeouts
from tessera.client.results import (
    Candidate,
    Claim,
    Delta,
    Embedding,
    Embeddings,
    Generation,
    ServerInfo,
    Verdict,
)
from tessera.client.retry import Retry
from tessera.client.sync import Client

if TYPE_CHECKING:
    from tessera.client.aio import AsyncClient
    from tessera.client.local import LocalClient

__all__ = [
    "AsyncClient",
    "Candidate",
    "Claim",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Delta",
    "Embedding",
    "Embeddings",
    "Generation",
    "HiddenStatesUnsupported",
    "HttpError",
    "Inference",
    "Injection",
    "InvalidResponse",
    "LocalClient",
    "NotApplied",
    "RateLimited",
    "RequestRefused",
    "RequestTimeout",
    "Retry",
    "ServerError",
    "ServerInfo",
    "StatusError",
    "Timeouts",
    "Unauthorized",
    "Unsupported",
    "Verdict",
    "connect",
]

_LAZY = {"AsyncClient": "tessera.client.aio", "LocalClient": "tessera.client.local"}
"""Not everybody needs them, and asyncio alone takes as long to import as numpy."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
