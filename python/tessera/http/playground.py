"""``GET /tessera``: the playground, one page that loads nothing from elsewhere and has no secrets."""

import base64
import hashlib
from http import HTTPStatus
from importlib.resources import files

from tessera.http.asgi import App, Receive, Scope, Send

PATH = "/tessera"


def page() -> tuple[bytes, str]:
    """The page, and its Content-Security-Policy: its own style and script, requests to its own server, no more."""
    folder = files("tessera.ui")
    html, style, script = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.replace("{style}", style).replace("{script}", script).encode(), policy


class Playground:
    """ASGI middleware that answers `PATH` without a key: a browser sends none for a page, only the page's requests do.

    Args:
        app: what answers everything else.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._content, policy = page()
        self._headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", str(len(self._content)).encode()),
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._content if scope["method"] == "GET" else b""})


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
