"""Whether an answer with status 200 has what its request asked for."""

from __future__ import annotations

import json
from typing import Any

from tessera.capabilities.fingerprints.answer import FINGERPRINTS, RESULT
from tessera.capabilities.inject.pending import INJECTED
from tessera.http.unserved import FIELDS
from tessera.rows.reads import ROWS_UNAVAILABLE
from tessera_patches.http.http_server import GENERATING
from tessera_patches.http.unserved import SCORES, TEXT, VERTEX

ANSWERED: dict[str, str] = {
    "return_embedding": "embedding",
    "return_hidden_states": "hidden_states",
    "input_embed_overrides": INJECTED,
    "return_toploc_fingerprints": FINGERPRINTS,
    "toploc_verification_fingerprint_to_validate": RESULT,
    "return_input_ids": "input_ids",
    "return_output_ids": "output_ids",
    "return_row_hashes": "row_hashes",
}
"""Fields of a request, and what an answer to them has."""


def dropped(path: str, body: str, answer: str) -> str:
    """What of ours was asked for and is not in the answer, or what the route cannot answer; "" if nothing.

    Args:
        path: the route's.
        body: what was sent.
        answer: the body of an answer with status 200: JSON, or a stream's chunks.
    """
    sent = _json_object(body) or {}
    if path == VERTEX:
        sent = sent.get("parameters") or {}
    requested = [name for name in FIELDS & sent.keys() if not _nothing(sent[name])]
    if path in (*TEXT, *SCORES):
        return ", ".join(requested)
    if path not in GENERATING or '"error"' in answer or f'"{ROWS_UNAVAILABLE}"' in answer:
        return ""  # of the last two one says why, for a stream's status was sent before
    return ", ".join(name for name in requested if name in ANSWERED and f'"{ANSWERED[name]}":' not in answer)


def _nothing(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, list) and all(map(_nothing, value)))


def _json_object(text: object) -> dict[str, Any] | None:
    """The object that a JSON text holds; None for anything else, also for what is no text."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
