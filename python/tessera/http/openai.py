"""Our fields on OpenAI's ``/v1/chat/completions`` and ``/v1/completions``: in with the request, out on the choice."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson

from tessera.admission import admit_embedding, admit_states, asked, tagged
from tessera.embed.options import APPLIED
from tessera.errors import TesseraError
from tessera.fingerprint import admission
from tessera.fingerprint.answer import FINGERPRINTS, RESULT
from tessera.fingerprint.options import NONCE_FIELD
from tessera.inject.carry import INJECTED, carried
from tessera.rows.span import UNAVAILABLE

STATES = "hidden_states"
FIELDS = (
    *("embedding", "embedding_tokens", APPLIED, INJECTED),
    *(STATES, "input_ids", "output_ids", "row_hashes", RESULT, NONCE_FIELD, UNAVAILABLE),
)
"""What we put into ``meta_info`` and what belongs on the choice; `FINGERPRINTS` as well, piece by piece."""
MESSAGE_FIELDS = (FINGERPRINTS, RESULT, NONCE_FIELD)
"""Of a chat these belong on the choice's message."""

_NOT_GENERATED: dict[str, Any] = {
    "output_token_logprobs": [],
    "output_token_logprobs_length": 0,
    "output_top_logprobs": [],
    "output_token_ids_logprobs": [],
}
_MARKED: dict[str, Any] = {"provider_specific_fields": {}}
"""In the delta of a chunk that has fields of ours and no text: litellm drops such a chunk without this key."""
_DATA = "data: "


class Collector:
    """What the engine answers to one OpenAI request: our fields of each choice, and the error that ended it, if any.

    Args:
        generates: False where ``max_tokens`` is 0: SGLang samples a token all the same, and lists it.
    """

    def __init__(self, *, generates: bool = True) -> None:
        self._generates = generates
        self.choices: dict[int, dict[str, Any]] = {}
        self.fingerprints: dict[int, list[str]] = {}
        self.id = ""
        self.error: TesseraError | None = None

    def note(self, index: int, meta: dict[str, Any]) -> None:
        """Take our fields out of the ``meta_info`` of one choice."""
        self.id = meta["id"]
        if not self._generates:
            meta |= {name: nothing for name, nothing in _NOT_GENERATED.items() if name in meta}
        fields = {name: meta.pop(name) for name in FIELDS if name in meta}
        if meta.get(FINGERPRINTS) is not None:
            self.fingerprints.setdefault(index, []).extend(meta.pop(FINGERPRINTS))
        elif FINGERPRINTS in meta:  # none can be vouched for, not those either that were not sent yet
            self.fingerprints.pop(index, None)
            fields[FINGERPRINTS] = meta.pop(FINGERPRINTS)
        if fields:
            self.choices[index] = fields

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
    if carried(params) is not None:
        params = tagged(params)
    token = asked(params).token
    if not token:
        return Admitted(wanted.custom_params, None)
    collector = _collectors[token] = Collector(generates=wanted.max_new_tokens != 0)
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


async def with_fields(events: AsyncIterable[str], collector: Collector, model: str, kind: str) -> AsyncIterator[str]:
    """The stream, with our fields on the chunks of their choices: before usage, where clients stop reading.

    Fingerprints go with the chunk that completes them, hidden states where SGLang has them: in one more chunk for each
    choice, after the last one that has a choice. All other fields go with the choice's ``finish_reason``.

    Args:
        events: server-sent events.
        collector: where the engine's answers are noted.
        model: its name, as the client gave it.
        kind: ``object`` of the chunk: "chat.completion.chunk" or "text_completion".
    """
    states: dict[int, Any] = {}
    async for event in events:
        if not (states or collector.choices or collector.fingerprints):
            yield event
            continue
        chunk = orjson.loads(event.removeprefix(_DATA)) if event.startswith(_DATA + "{") else {}
        choices = chunk.get("choices") or []
        if not choices:
            for index in sorted(states):
                yield _event(_states_chunk(collector.id, index, states.pop(index), model, kind))
        found = [_fields_of(choice, collector) for choice in choices]
        for choice, fields in zip(choices, found, strict=True):
            if STATES in fields:
                states[choice["index"]] = fields.pop(STATES)
            _put(choice, fields, "delta")
            if fields and "delta" in choice:
                choice["delta"] |= _MARKED
        yield _event(chunk) if any(found) else event


def _fields_of(choice: dict[str, Any], collector: Collector) -> dict[str, Any]:
    """What belongs on this chunk of a choice."""
    index = choice["index"]
    return collector.take_fingerprints(index) if choice.get("finish_reason") is None else collector.take(index)


def _states_chunk(chunk_id: str, index: int, states: Any, model: str, kind: str) -> dict[str, Any]:
    silent = dict.fromkeys(("role", "content", "reasoning_content", "tool_calls"))
    delta = {**silent, **_MARKED, STATES: states}
    shown = {"text": "", STATES: states} if kind == "text_completion" else {"delta": delta}
    choice = {"index": index, **shown, "logprobs": None, "finish_reason": None}
    return {"id": chunk_id, "object": kind, "created": int(time.time()), "model": model, "choices": [choice]}


def _event(chunk: dict[str, Any]) -> str:
    return f"{_DATA}{orjson.dumps(chunk, option=orjson.OPT_SERIALIZE_NUMPY).decode()}\n\n"
