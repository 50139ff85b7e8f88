"""``GET /tessera``, the page; what it does in a browser is in tests/browser."""

from __future__ import annotations

import base64
import hashlib
import re

import httpx

from tessera.launching.server import Server


def test_the_page(strained: Server) -> None:
    """It is there where it is switched on, and may run its own script and style alone."""
    answer = httpx.get(f"{strained.url}/tessera", timeout=60).raise_for_status()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    for kind in ("script", "style"):
        (own,) = re.findall(rf"<{kind}>(.*?)</{kind}>", answer.text, re.DOTALL)
        sha256 = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{sha256}'" in policy
    assert not re.findall(r"https?://(?!www\.w3\.org/)", answer.text)
    assert not re.findall(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", answer.text)
    assert httpx.head(f"{strained.url}/tessera", timeout=60).content == b""


def test_no_page(server: Server) -> None:
    """Where nobody has switched it on."""
    assert httpx.get(f"{server.url}/tessera", timeout=60).status_code == 404
