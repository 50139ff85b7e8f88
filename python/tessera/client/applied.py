"""Is what a request asked for what its answer says was applied? A proxy may drop fields that it does not know."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tessera.client.errors import HiddenStatesUnsupported, NotApplied
from tessera.client.status import FLAG

PROXY = (
    "a proxy in front of the server drops fields that it does not know, as sglang-router does: give the address of the "
    "server itself, or see docs/guide/client.md, Behind a proxy"
)
"""The likely cause, and what to do."""
APPLIED = "embedding_options"
"""The field of an answer that says how its vectors were made."""


def missing(what: str) -> HiddenStatesUnsupported:
    """The error for a good answer that lacks what was asked for."""
    return HiddenStatesUnsupported(
        f"the answer has no {what}: the server runs without sglang-tessera or {FLAG}, or {PROXY}", status=HTTPStatus.OK
    )


def check_generation(sent: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Compare a body for ``/generate`` with the ``meta_info`` that came.

    Raises:
        NotApplied: something that was asked for is not among what was applied.
    """
    how = sent.get("return_embedding") or {}
    check_pooling({name: value for name, value in how.items() if name != "encoding_format"}, meta)
    vectors = sum(override["shape"][0] for override in sent.get("input_embed_overrides", ()))
    if vectors:
        _check("input_embed_overrides", f"{vectors} vectors", vectors, meta.get("injected"))
    nonce = sent.get("toploc_nonce")
    if nonce is not None:
        _check("toploc_nonce", repr(nonce), nonce, meta.get("toploc_nonce"))


def check_pooling(requested: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Compare options of an embedding with the ``embedding_options`` of an answer.

    Raises:
        NotApplied: one has another value there, or is not there.
    """
    applied = answer.get(APPLIED)
    for name, value in requested.items():
        if value is not None:
            found = applied.get(name) if isinstance(applied, Mapping) else None
            _check(name, json.dumps(value), value, found)


def _check(field: str, shown: str, requested: Any, applied: Any) -> None:
    if requested != applied:
        raise NotApplied(
            f"{field}: asked for was {shown}, applied was {json.dumps(applied)}; the answer is not returned. Probably "
            f"{PROXY}"
        )
