"""Each client has the methods of `Inference`, with its parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tessera.client import AsyncClient, Client, Inference, LocalClient

METHODS = sorted(name for name in vars(Inference) if not name.startswith("_"))


@pytest.mark.parametrize("client", [AsyncClient, Client, LocalClient])
@pytest.mark.parametrize("name", METHODS)
def test_parameters(client: type[Any], name: str) -> None:
    """``help()`` shows them, also where a method is made of another one."""
    expected = inspect.signature(getattr(Inference, name)).parameters
    assert dict(inspect.signature(getattr(client, name)).parameters) == dict(expected)


def test_no_method_is_missing_here() -> None:
    """The list comes from the protocol."""
    assert {"generate", "stream", "encode_batch", "close"} <= set(METHODS)
    assert inspect.getdoc(Client.encode) == inspect.getdoc(AsyncClient.encode)
