"""The client gives up idle connections before SGLang closes them."""

from __future__ import annotations

from sglang.srt.environ import envs

from tessera.client.http import CONNECTIONS


def test_the_client_is_first() -> None:
    """With both at 5 s, which are the defaults of SGLang and httpx, a request meets a closed connection."""
    assert CONNECTIONS.keepalive_expiry is not None
    assert CONNECTIONS.keepalive_expiry <= envs.SGLANG_TIMEOUT_KEEP_ALIVE.get() / 2
