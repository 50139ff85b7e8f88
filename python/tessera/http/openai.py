"""Our fields on OpenAI's ``/v1/chat/completions`` and ``/v1/completions``: in with the request, out on the choice."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson

from tessera.admission import admit_embedding, admit_states, asked
from tessera.errors import TesseraError
from tessera.fingerprint import admission
from tessera.fingerprint.answer import FINGERPRINTS, RESULT

FIELDS = ("embedding", "embedding_tokens", "hidden_states", "input_ids", "output_ids", "row_hashes", RESULT)
"""What we put into ``meta_info`` and what belongs on the choice; `FINGERPRINTS` as well, piece by piece."""
MESSAGE_FIELDS = (FINGERPRINTS, RESULT)
"""Of a chat these belong on the choice's message."""

_DATA = "data: "
_DONE = _DATA + "[DONE]"


class Collector:
    """What the engine answers to one OpenAI request: our fields of each choice, and the error that ended it, if any."""

    def __init__(self) -> None:
        self.choices: dict[int, dict[str, Any]] = {}
        self.fingerprints: dict[int, list[str]] = {}
        self.id = ""
        self.error: TesseraError | None = None

    def note(self, index: int, meta: dict[str, Any]) -> None:
        """Take our fields out of the ``meta_info`` of one choice."""
        self.id = meta["id"]
        fields = {name: meta.pop(name) for name in FIELDS if name in meta}
        if fields:
            self.choices[index] = fields
        if FINGERPRINTS in meta:
            self.fingerprints.setdefault(index, []).extend(meta.pop(FINGERPRINTS))

    def take(self, index: int) -> dict[str, Any]:
        """All of one choice that was not sent yet."""
        return self.choices.pop(index, {}) | self.take_fingerprints(index)

    def take_fingerprints(self, index: int) -> dict[str, Any]:
        """Fingerprints of one choice that were not sent yet."""
        found = self.fingerprints.pop(index, None)
        return {} if found is None else {FINGERPRINTS: found}


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
    n: int | None
    toploc: admission.Fields
    tail: int = 0
    either_end: bool = False


def admit(wanted: Wanted, *, rows: bool, hidden_size: int | None) -> Admitted:
    """Validate our fields of one OpenAI request.

    Args:
        wanted: the fields.
        rows: whether the server keeps rows.
        hidden_size: H of the model.

    Raises:
        BadRequest: a value is not allowed, or the server does not keep rows.
    """
    params: Any = {"custom_params": wanted.custom_params, "max_new_tokens": wanted.max_new_tokens, "n": wanted.n or 1}
    asked(params)
    params = admit_embedding(wanted.return_embedding, params, enabled=rows, hidden_size=hidden_size)
    if rows:
        params = admit_states(wanted.return_hidden_states, wanted.hidden_states_format, params)
    server = admission.server()
    params = admission.admit(wanted.toploc, params, server, tail=wanted.tail, either_end=wanted.either_end)
    token = asked(params).token
    if not token:
        return Admitted(wanted.custom_params, None)
    collector = _collectors[token] = Collector()
    return Admitted(params["custom_params"], collector)


def collector_of(sampling_params: object) -> Collector | None:
    """Where the answer to the request with these sampling parameters belongs; None if it is not an OpenAI one.

    They are a list where its prompts inject different vectors; all of them carry the same token.
    """
    each = sampling_params if isinstance(sampling_params, list) else [sampling_params]
    return _collectors.get(asked(each[0]).token) if each else None


def put_on_choices(response: dict[str, Any], collector: Collector) -> dict[str, Any]:
    """Our fields beside OpenAI's, in place."""
    for choice in response["choices"]:
        _put(choice, collector.take(choice["index"]), "message")
    return response


def _put(choice: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    for name, value in fields.items():
        (choice[message] if name in MESSAGE_FIELDS and message in choice else choice)[name] = value


async def with_last_chunk(
    events: AsyncIterable[str], collector: Collector, model: str, kind: str
) -> AsyncIterator[str]:
    """The stream, with our fields of all choices in one more chunk before ``[DONE]``.

    Fingerprints go with the chunk that completes them.

    Args:
        events: server-sent events.
        collector: where the engine's answers are noted.
        model: its name, as the client gave it.
        kind: ``object`` of the chunk: "chat.completion.chunk" or "text_completion".
    """
    async for event in events:
        if event.startswith(_DONE):
            if collector.choices or collector.fingerprints:
                yield _chunk(collector, model, kind)
            yield event
        else:
            yield _with_fingerprints(event, collector) if collector.fingerprints else event


def _with_fingerprints(event: str, collector: Collector) -> str:
    chunk = orjson.loads(event.removeprefix(_DATA)) if event.startswith(_DATA + "{") else {}
    choices = [choice for choice in chunk.get("choices", ()) if choice.get("index") in collector.fingerprints]
    for choice in choices:
        _put(choice, collector.take_fingerprints(choice["index"]), "delta")
    return f"{_DATA}{orjson.dumps(chunk).decode()}\n\n" if choices else event


def _chunk(collector: Collector, model: str, kind: str) -> str:
    choices = []
    for index in sorted({*collector.choices, *collector.fingerprints}):
        empty: dict[str, Any] = {"text": ""} if kind == "text_completion" else {"delta": {}}
        choice = {"index": index, **empty, "logprobs": None, "finish_reason": None}
        _put(choice, collector.take(index), "delta")
        choices.append(choice)
    chunk = {"id": collector.id, "object": kind, "created": int(time.time()), "model": model, "choices": choices}
    return f"{_DATA}{orjson.dumps(chunk, option=orjson.OPT_SERIALIZE_NUMPY).decode()}\n\n"
