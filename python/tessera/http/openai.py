"""Our fields on OpenAI's ``/v1/chat/completions`` and ``/v1/completions``: in with the request, out on the choice."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson

from tessera.admission import admit_embedding, admit_states, asked
from tessera.errors import TesseraError

FIELDS = ("embedding", "embedding_tokens", "hidden_states")
"""What we put into ``meta_info`` and what belongs on the choice."""

_DONE = "data: [DONE]"


class Collector:
    """What the engine answers to one OpenAI request: our fields of each choice, and the error that ended it, if any."""

    def __init__(self) -> None:
        self.choices: dict[int, dict[str, Any]] = {}
        self.id = ""
        self.error: TesseraError | None = None

    def note(self, index: int, meta: dict[str, Any]) -> None:
        """Take our fields out of the ``meta_info`` of one choice."""
        self.id = meta["id"]
        fields = {name: meta.pop(name) for name in FIELDS if name in meta}
        if fields:
            self.choices[index] = fields


_collectors: WeakValueDictionary[str, Collector] = WeakValueDictionary()


class Admitted(NamedTuple):
    """Custom parameters that carry what was asked for, and where its answer will be; None where nothing was."""

    custom_params: dict[str, Any] | None
    collector: Collector | None


class Wanted(NamedTuple):
    """Our fields, and the fields of OpenAI's that they depend on, as they came."""

    return_embedding: Any
    return_hidden_states: Any
    hidden_states_format: Any
    custom_params: Any
    max_new_tokens: int | None


def admit(wanted: Wanted, *, rows: bool, hidden_size: int | None) -> Admitted:
    """Validate our fields of one OpenAI request.

    Args:
        wanted: the fields.
        rows: whether the server keeps rows.
        hidden_size: H of the model.

    Raises:
        BadRequest: a value is not allowed, or the server does not keep rows.
    """
    params: Any = {"custom_params": wanted.custom_params, "max_new_tokens": wanted.max_new_tokens}
    asked(params)
    params = admit_embedding(wanted.return_embedding, params, enabled=rows, hidden_size=hidden_size)
    if rows:
        params = admit_states(wanted.return_hidden_states, wanted.hidden_states_format, params)
    token = asked(params).token
    if not token:
        return Admitted(wanted.custom_params, None)
    collector = _collectors[token] = Collector()
    return Admitted(params["custom_params"], collector)


def collector_of(sampling_params: object) -> Collector | None:
    """Where the answer to the request with these sampling parameters belongs; None if it is not an OpenAI one."""
    return _collectors.get(asked(sampling_params).token)


def put_on_choices(response: dict[str, Any], collector: Collector) -> dict[str, Any]:
    """Our fields beside OpenAI's, in place."""
    for choice in response["choices"]:
        choice.update(collector.choices.get(choice["index"], {}))
    return response


async def with_last_chunk(
    events: AsyncIterable[str], collector: Collector, model: str, kind: str
) -> AsyncIterator[str]:
    """The stream, with our fields of all choices in one more chunk before ``[DONE]``.

    Args:
        events: server-sent events.
        collector: where the engine's answers are noted.
        model: its name, as the client gave it.
        kind: ``object`` of the chunk: "chat.completion.chunk" or "text_completion".
    """
    async for event in events:
        if event.startswith(_DONE) and collector.choices:
            yield _chunk(collector, model, kind)
        yield event


def _chunk(collector: Collector, model: str, kind: str) -> str:
    empty: dict[str, Any] = {"text": ""} if kind == "text_completion" else {"delta": {}}
    choices = [
        {"index": index, **empty, "logprobs": None, "finish_reason": None, **fields}
        for index, fields in sorted(collector.choices.items())
    ]
    chunk = {"id": collector.id, "object": kind, "created": int(time.time()), "model": model, "choices": choices}
    return f"data: {orjson.dumps(chunk, option=orjson.OPT_SERIALIZE_NUMPY).decode()}\n\n"
