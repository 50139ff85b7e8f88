"""Our fields on OpenAI's ``/v1/chat/completions`` and ``/v1/completions``: in with the request, out on the choice."""

import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import orjson

from tessera import carry
from tessera.capabilities.registry import CAPABILITIES
from tessera.capability import Place
from tessera.rows.reads import ROWS_UNAVAILABLE

PLACES = {name: place for capability in CAPABILITIES for name, place in capability.answers.items()}
PLACES[ROWS_UNAVAILABLE] = Place.CHOICE
"""Our fields of ``meta_info``, and their places on OpenAI's routes."""
PIECES = frozenset(name for capability in CAPABILITIES for name in capability.pieces)
"""Fields that come piece by piece: `Capability.pieces`."""

_NOT_GENERATED: dict[str, Any] = {
    "output_token_logprobs": [],
    "output_token_logprobs_length": 0,
    "output_top_logprobs": [],
    "output_token_ids_logprobs": [],
}
_MARKED: dict[str, Any] = {"provider_specific_fields": {}}
"""In the delta of a chunk that has our fields and no text: litellm drops such a chunk without this key."""
_DATA = "data: "
_EMPTY_MESSAGE = {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}
_END = {"logprobs": None, "finish_reason": "length", "matched_stop": None}
_NO_USAGE = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}


class Collector:
    """Our fields of each choice in what the engine answers to one OpenAI request.

    Args:
        generates: False where ``max_tokens`` is 0: SGLang samples a token all the same, and lists it.
    """

    def __init__(self, *, generates: bool = True) -> None:
        self._generates = generates
        self.choices: dict[int, dict[str, Any]] = {}
        self.pieces: dict[int, dict[str, list[Any]]] = {}
        self.id = ""

    def note(self, index: int, meta: dict[str, Any]) -> None:
        """Take our fields out of the ``meta_info`` of one choice."""
        self.id = meta["id"]
        if not self._generates:
            meta |= {name: nothing for name, nothing in _NOT_GENERATED.items() if name in meta}
        fields = {name: meta.pop(name) for name in PLACES if name in meta}
        for name in PIECES & fields.keys():
            if fields[name] is None:  # nothing can be vouched for, not what was not sent yet either
                self.pieces.get(index, {}).pop(name, None)
            else:
                self.pieces.setdefault(index, {}).setdefault(name, []).extend(fields.pop(name))
        if fields:
            self.choices[index] = fields

    def pop(self, index: int) -> dict[str, Any]:
        """All of one choice that was not sent yet."""
        return self.choices.pop(index, {}) | self.pop_pieces(index)

    def pop_pieces(self, index: int) -> dict[str, Any]:
        """Pieces of one choice that were not sent yet."""
        return dict(self.pieces.pop(index, {}))


collectors: WeakKeyDictionary[carry.Live, Collector] = WeakKeyDictionary()
"""Where our fields of the answer to each request on an OpenAI route are noted, while it runs."""


def collector_of(sampling_params: object) -> Collector | None:
    """Where the answer to the request with these sampling parameters belongs; None if it is not an OpenAI one."""
    live = carry.live(sampling_params)
    return None if live is None else collectors.get(live)


def put_on_choices(response: dict[str, Any], collector: Collector) -> dict[str, Any]:
    """Add our fields to the choices of an OpenAI answer (in place)."""
    for choice in response["choices"]:
        _put(choice, collector.pop(choice["index"]), "message")
    return response


def unrun_chat(fields: dict[str, Any], model: str) -> dict[str, Any]:
    """The answer to a chat that is not run: an empty message, with our fields.

    Args:
        fields: by name.
        model: its name, as the client gave it.
    """
    choice: dict[str, Any] = {"index": 0, "message": dict(_EMPTY_MESSAGE), **_END}
    _put(choice, fields, "message")
    return _unrun("chat.completion", model, [choice]) | {"usage": _NO_USAGE}


def unrun_events(fields: dict[str, Any], model: str, *, usage: bool) -> list[str]:
    """`unrun_chat` as a stream; ``usage``: with a chunk for it, as the client asked."""
    choice: dict[str, Any] = {"index": 0, "delta": dict(_EMPTY_MESSAGE), **_END}
    _put(choice, fields, "delta")
    chunks = [_unrun("chat.completion.chunk", model, [choice])]
    if usage:
        chunks.append({**chunks[0], "choices": [], "usage": _NO_USAGE})
    return [*map(_event, chunks), f"{_DATA}[DONE]\n\n"]


def _unrun(kind: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": uuid4().hex, "object": kind, "created": int(time.time()), "model": model, "choices": choices}


def _put(choice: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    for name, value in fields.items():
        on_message = PLACES[name] is Place.MESSAGE and message in choice
        (choice[message] if on_message else choice)[name] = value


async def with_fields(events: AsyncIterable[str], collector: Collector, model: str, kind: str) -> AsyncIterator[str]:
    """The stream, with our fields on the chunks of their choices: before usage, where clients stop reading.

    Pieces go with the chunk that completes them. Fields with `Place.LAST_CHUNK` go where SGLang has its hidden states:
    in one more chunk for each choice, after the last one that has a choice. All others go with the ``finish_reason``.

    Args:
        events: server-sent events.
        collector: where the engine's answers are noted.
        model: its name, as the client gave it.
        kind: ``object`` of the chunk: "chat.completion.chunk" or "text_completion".
    """
    last: dict[int, dict[str, Any]] = {}
    async for event in events:
        if not (last or collector.choices or collector.pieces):
            yield event
            continue
        chunk = orjson.loads(event.removeprefix(_DATA)) if event.startswith(_DATA + "{") else {}
        choices = chunk.get("choices") or []
        if not choices:
            for index in sorted(last):
                yield _event(_last_chunk(collector.id, index, last.pop(index), model, kind))
        found = [_fields_of(choice, collector) for choice in choices]
        for choice, fields in zip(choices, found, strict=True):
            if late := [name for name in fields if PLACES[name] is Place.LAST_CHUNK]:
                last[choice["index"]] = {name: fields.pop(name) for name in late}
            _put(choice, fields, "delta")
            if fields and "delta" in choice:
                choice["delta"] |= _MARKED
        yield _event(chunk) if any(found) else event


def _fields_of(choice: dict[str, Any], collector: Collector) -> dict[str, Any]:
    """Our fields for this chunk of a choice."""
    index = choice["index"]
    return collector.pop_pieces(index) if choice.get("finish_reason") is None else collector.pop(index)


def _last_chunk(chunk_id: str, index: int, fields: dict[str, Any], model: str, kind: str) -> dict[str, Any]:
    silent = dict.fromkeys(("role", "content", "reasoning_content", "tool_calls"))
    delta = {**silent, **_MARKED, **fields}
    shown = {"text": "", **fields} if kind == "text_completion" else {"delta": delta}
    choice = {"index": index, **shown, "logprobs": None, "finish_reason": None}
    return {"id": chunk_id, "object": kind, "created": int(time.time()), "model": model, "choices": [choice]}


def _event(chunk: dict[str, Any]) -> str:
    return f"{_DATA}{orjson.dumps(chunk, option=orjson.OPT_SERIALIZE_NUMPY).decode()}\n\n"
