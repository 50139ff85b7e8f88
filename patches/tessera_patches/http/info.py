"""``/server_info``: SGLang's answer without its secrets, and our versions, options, seams and memory."""

import platform
import shlex
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from sglang.srt.utils.json_response import orjson_response

from tessera import __version__, config
from tessera.capabilities.embed import routes as embeddings
from tessera.delivery.outcome import RowStoreStats
from tessera_patches import inventory
from tessera_patches.core import apply, calls, lock
from tessera_patches.core.seam import Phase
from tessera_patches.launch import liveness

SECRETS = (
    *("api_key", "admin_api_key", "ssl_keyfile_password"),
    *("watermark_config", "watermark_key", "watermark_key_b"),
)
"""SGLang's options whose values are not shown."""
REDACTED = "(redacted)"
PACKAGES = ("torch", "transformers", "starlette")
"""Packages whose versions are shown, beside SGLang's and ours."""


def add_route(app: FastAPI, stock: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    """Add ``/server_info``, with our part under the key ``tessera``."""

    async def server_info() -> Response:
        if config.inbox is not None:
            config.inbox.open()  # what the schedulers said at the start may not be read yet
        answer: Response = orjson_response({**redact(await stock()), "tessera": ours()})
        return answer

    calls.count(add_route)
    for path in ("/server_info", "/get_server_info"):  # the second is SGLang's old name
        app.add_api_route(path, server_info, methods=["GET"], include_in_schema=False)


def ours() -> dict[str, Any]:
    """Versions, options, seams and their calls, and memory."""
    features = config.active.features()
    seams = {
        "main": [seam.target for seam in apply.installed],
        "scheduler": [seam.target for seam in inventory.hooks(Phase.SCHEDULER, features)] if features else [],
    }
    found = {
        "version": __version__,
        "on": config.on(),
        "versions": versions(),
        "options": config.flags.non_default(),
        "seams": seams,
        "calls": {
            "complete": liveness.all_called(),
            "counts": calls.counts(liveness.required_ever()),
            "on_demand": calls.counts(liveness.on_demand()),
        },
        "row_stores": [_store(config.stores[replica]) for replica in sorted(config.stores)],
    }
    return found | ({"embeddings": embedding_options()} if config.active.rows else {})


def versions() -> dict[str, str]:
    """The versions of Tessera, SGLang, torch and what else runs here."""
    others = {name: version(name) for name in PACKAGES}
    return {"tessera": __version__, "sglang": lock.installed_version(), "python": platform.python_version(), **others}


def labels() -> dict[str, str]:
    """The labels of the metric that says what runs."""
    given = [name if value is True else f"{name}={value}" for name, value in config.flags.non_default().items()]
    about = {"version": __version__, "sglang": lock.installed_version()}
    return about | {"on": ",".join(config.on()), "options": shlex.join(given)}


def note(stats: RowStoreStats, kinds: str) -> None:
    """Record the row-store statistics of a step."""
    config.stores[stats.replica] = stats
    if config.metrics is not None:
        config.metrics.record_row_store(stats, kinds)


def redact(value: Any) -> Any:
    """A copy without secrets. SGLang shows the administrator's key to whoever has the user's, once for each replica."""
    if isinstance(value, dict):
        return {key: REDACTED if key in SECRETS and own else redact(own) for key, own in value.items()}
    return [redact(own) for own in value] if isinstance(value, list) else value


def embedding_options() -> dict[str, Any]:
    """The server's defaults for ``/v1/embeddings`` and ``/encode``."""
    flags = config.flags
    return {key: getattr(flags.embed_options, key) for key in embeddings.OPTIONS} | {
        "text_only": flags.embeddings_text_only
    }


def _store(stats: RowStoreStats) -> dict[str, Any]:
    share = stats.store_bytes / stats.kv_bytes if stats.kv_bytes else None
    return {
        "replica": stats.replica,
        "bytes": stats.store_bytes,
        "slots": stats.slots,
        "host_bytes": stats.host_bytes,
        "kv_cache_bytes": stats.kv_bytes,
        "share_of_kv_cache": share,
    }
