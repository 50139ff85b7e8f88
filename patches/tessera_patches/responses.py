"""Answers: embeddings and raw states in the ``meta_info`` of the answer that finishes. Main process."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any

from tessera import config
from tessera.admission import Asked, asked
from tessera.delivery.inbox import Inbox
from tessera.delivery.outcome import Delivered
from tessera.embed.answer import answer as embedding
from tessera.errors import RequestFailed
from tessera.states.answer import answer as hidden_states

Outputs = AsyncIterator[dict[str, Any]]


def with_rows(original: Callable[..., Outputs], manager: Any, obj: Any, request: Any = None) -> Outputs:
    """AROUND ``TokenizerManager._wait_one_response``. Requests that did not ask get the original generator."""
    wanted = asked(getattr(obj, "sampling_params", None))
    if wanted == Asked() or config.inbox is None:
        return original(manager, obj, request)
    inbox, key = config.inbox, wanted.token + obj.rid
    inbox.expect(key)
    outputs = _with_rows(original(manager, obj, request), wanted, inbox, key, stream=obj.stream)
    # Not in a finally of the generator: one that SGLang never starts would never run it.
    weakref.finalize(outputs, inbox.forget, key)
    return outputs


async def _with_rows(outputs: Outputs, wanted: Asked, inbox: Inbox, key: str, *, stream: bool) -> Outputs:
    async for output in outputs:
        meta = output["meta_info"]
        reason = meta.get("finish_reason")
        if reason is not None and reason.get("type") != "abort":
            try:
                meta.update(_fields(await inbox.take(key), wanted, meta["prompt_tokens"]))
            except RequestFailed as error:
                if not stream:
                    raise
                meta["finish_reason"] = _abort(error)
        yield output


def _fields(delivered: Delivered, wanted: Asked, prompt_tokens: int) -> dict[str, Any]:
    outcome, vector, rows, dtype = delivered
    if outcome.code:
        raise RequestFailed(outcome.code, outcome.message)
    fields: dict[str, Any] = {}
    if wanted.embed is not None and outcome.embedding_tokens is not None:
        fields |= embedding(vector, outcome.embedding_tokens, wanted.embed)
    if wanted.states is not None and rows is not None and outcome.states_shape is not None:
        fields["hidden_states"] = hidden_states(rows, dtype, outcome.states_shape, wanted.states, prompt_tokens)
    return fields


def _abort(error: RequestFailed) -> dict[str, Any]:
    """The status of a stream is sent already: there a failure ends it as SGLang's own aborts do."""
    return {"type": "abort", "message": str(error), "status_code": HTTPStatus(error.status), "err_type": error.code}
