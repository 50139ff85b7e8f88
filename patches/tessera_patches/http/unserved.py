"""SGLang's routes that generate or score, and have no place for our fields. Main process."""

import os
from typing import Any

from fastapi import FastAPI

from tessera import config
from tessera.http.unserved import Unserved
from tessera_patches.core.changes import replace_method

VERTEX = os.environ.get("AIP_PREDICT_ROUTE", "/vertex_generate")
"""As SGLang reads it. Its ``parameters`` take our fields, and its predictions are answers of /generate."""
OLLAMA_CHAT = os.environ.get("SGLANG_OLLAMA_CHAT_ROUTE", "/api/chat")
OLLAMA_GENERATE = os.environ.get("SGLANG_OLLAMA_GENERATE_ROUTE", "/api/generate")
TEXT = (
    *("/v1/responses", "/v1/messages", "/v1/audio/transcriptions", "/v1/realtime"),
    *(OLLAMA_CHAT, OLLAMA_GENERATE),
)
"""These generate text, in formats of other makers."""
SCORES = ("/v1/score", "/v1/rerank", "/v1/classify", "/classify", "/v1/decisions", "/v1/systemone")
"""These answer with numbers alone, and there is no response that could have fingerprints."""


def guard(app: FastAPI) -> None:
    """Let these routes refuse our fields."""
    required = config.flags.toploc_verification
    for route in app.router.routes:
        stock: Any = route
        path = getattr(stock, "path", None)
        if path in (*TEXT, *SCORES):
            replace_method(guard, stock, "app", Unserved(stock.app, fingerprints_required=required and path in TEXT))
        elif path == VERTEX:
            whole = Unserved(stock.app, fingerprints_required=False, batch="instances", instead='"parameters"')
            replace_method(guard, stock, "app", whole)
