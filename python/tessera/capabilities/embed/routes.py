"""``POST /v1/embeddings`` (OpenAI) and ``POST /encode`` (``{"text": ...}``) on a server that generates."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tessera.capabilities.embed import inputs
from tessera.capabilities.embed.inputs import Limits, Prompts, Tokenizer
from tessera.capabilities.embed.options import APPLIED, FIELD, EmbedFields, EmbedOptions, Encoding, chosen
from tessera.errors import BadRequest, TesseraError
from tessera.fields import read, whole
from tessera.http import adapters
from tessera.http.body import Streamed, read_object, strings
from tessera.http.error_body import error_body, note_items
from tessera.http.vectors import Body, Transport, accepted, binary

OPTIONS = ("dimensions", "pooling", "normalize")
"""Those that the server has a default for."""
ON_ERROR = "on_error"
_BOTH = ("encoding_format", *OPTIONS, "spans", inputs.TRUNCATE, ON_ERROR, adapters.FIELD)
OPENAI_KEYS = ("input", inputs.MESSAGES, inputs.GENERATION_PROMPT, "model", "user", *_BOTH)
ENCODE_KEYS = ("text", "hidden_size", *_BOTH)

Embed = Callable[[Prompts, dict[str, Any]], Awaitable[list[dict[str, Any]]]]
"""From prompts and a ``return_embedding`` object to the ``meta_info`` of each prompt's answer."""


class Incoming(Streamed, Protocol):
    """What we need of ``starlette.requests.Request``."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are not case-sensitive."""


class Model(NamedTuple):
    """What an answer and the checks need to know of the model and of the server.

    Attributes:
        name: the model's.
        hidden_size: H.
        vocabulary: how many token ids it has.
        defaults: what is done where a request does not say.
        text_only: whether prompts of token ids are refused.
        adapters: names of those that are loaded; they may change while it serves.
        prompt: tokens of a prompt at most.
        tokenizer: None on a server without one.
    """

    name: str
    hidden_size: int
    vocabulary: int
    defaults: EmbedOptions = EmbedOptions()
    text_only: bool = False
    adapters: Collection[str] = ()
    prompt: int = 0
    tokenizer: Tokenizer | None = None

    @property
    def limits(self) -> Limits:
        """Of prompts."""
        return Limits(self.vocabulary, self.prompt, self.text_only)


async def openai(request: Incoming, embed: Embed, model: Model) -> dict[str, Any] | Body:
    """Answer ``/v1/embeddings``.

    Args:
        request: its body has ``input`` (text, texts, token ids, list of token ids) or ``messages`` (a chat) with
            ``add_generation_prompt``, ``model``, ``encoding_format``, ``dimensions``, ``user``, our ``pooling``,
            ``normalize``, ``spans``, ``truncate_prompt_tokens`` and ``on_error``, and ``lora_path``.
        embed: runs the prompts.
        model: what is served.

    Raises:
        BadRequest: a field is wrong.
    """
    body = await read_object(request, OPENAI_KEYS)
    transport = accepted(request.headers.get("accept"))
    options = _options(body, transport, model)
    adapter = adapters.of_openai(body.get("model"), body.get(adapters.FIELD), model.name, model.adapters)
    call = _Call(embed, options, adapter, inputs.truncation(body, model.limits), model.tokenizer)
    generation = inputs.generation_prompt(body)
    if _nulls(body, transport):
        results = await call.each("input", inputs.items_of("input", body.get("input"), model.limits))
    elif body.get(inputs.MESSAGES) is not None:
        results = await call.run(inputs.chat_of(body, generation, model.tokenizer))
    else:
        results = await call.run(inputs.prompts_of("input", body.get("input"), model.limits))
    tokens = [meta["prompt_tokens"] for meta in results if "prompt_tokens" in meta]
    if transport is not Transport.JSON:
        return _binary(results, transport)
    data = [entry for i, meta in enumerate(results) for entry in _entries(i, meta, options)]
    data = [{**entry, "index": i} for i, entry in enumerate(data)]
    usage = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


async def encode(request: Incoming, embed: Embed, model: Model) -> dict[str, Any] | Body:
    """Answer ``/encode``: ``embedding`` for one text and ``embeddings`` for a list, with the options of `openai`.

    With ``spans`` it is ``embeddings``, one vector for each span, and for a list of texts a list of these. With
    ``on_error`` there is ``errors`` beside them, for each text null or what is wrong.

    Raises:
        BadRequest: a field is wrong; a ``hidden_size`` that is not the model's; an adapter that is not loaded.
    """
    body = await read_object(request, ENCODE_KEYS)
    expected = body.get("hidden_size")
    if expected is not None and expected != model.hidden_size:
        raise BadRequest("hidden_size", expected, f"{model.hidden_size}, this model's")
    transport = accepted(request.headers.get("accept"))
    options = _options(body, transport, model)
    path = adapters.named(adapters.FIELD, body.get(adapters.FIELD))
    adapter = adapters.known(adapters.FIELD, path, model.adapters)
    text = body.get("text")
    call = _Call(embed, options, adapter, inputs.truncation(body, model.limits), model.tokenizer)
    if _nulls(body, transport):
        results = await call.each("text", inputs.texts_of("text", text))
    else:
        results = await call.run({"text": strings("text", text)})
    if transport is not Transport.JSON:
        return _binary(results, transport)
    name = "embedding" if body.get("spans") is None else "embeddings"
    vectors = [meta.get(name) for meta in results]
    errors = {"errors": [meta.get("error") for meta in results]} if body.get(ON_ERROR) is not None else {}
    if not isinstance(text, list):
        return {name: vectors[0], **errors}
    return {"embeddings": vectors, **errors}


class _Call(NamedTuple):
    """How the prompts of one request are run."""

    embed: Embed
    options: dict[str, Any]
    adapter: str | None
    most: int | None
    tokenizer: Tokenizer | None

    async def run(self, prompts: Prompts) -> list[dict[str, Any]]:
        """The ``meta_info`` of each prompt's answer."""
        lora = {} if self.adapter is None else {adapters.FIELD: self.adapter}
        return await self.embed(inputs.truncated(prompts, self.most, self.tokenizer) | lora, self.options)

    async def each(self, field: str, prompts: Sequence[Prompts | BadRequest]) -> list[dict[str, Any]]:
        """The same, each prompt by itself: ``{"error": ...}`` for one that fails."""
        results = await asyncio.gather(*(self._one(field, i, prompt) for i, prompt in enumerate(prompts)))
        note_items(field, [meta.get("error") for meta in results])
        return results

    async def _one(self, field: str, i: int, prompt: Prompts | BadRequest) -> dict[str, Any]:
        try:
            if isinstance(prompt, BadRequest):
                raise prompt
            return (await self.run(prompt))[0]
        except TesseraError as error:
            found = error_body(error)["error"]
            if not isinstance(prompt, BadRequest):  # it was the first of its own request
                named = {key: found[key] for key in ("message", "param") if found[key]}
                found |= {key: text.replace(f"{field}[0]", f"{field}[{i}]", 1) for key, text in named.items()}
            return {"error": found}


def _nulls(body: dict[str, Any], transport: Transport) -> bool:
    """Whether a prompt that fails is null in the answer, and others are answered.

    Raises:
        BadRequest: another value than ``"null"``; beside ``messages``; an answer that has no place for it.
    """
    value = body.get(ON_ERROR)
    if value is None:
        return False
    if value != "null":
        raise BadRequest(ON_ERROR, value, '"null"')
    if transport is not Transport.JSON or body.get(inputs.MESSAGES) is not None:
        raise BadRequest(ON_ERROR, value, "nothing beside messages, or where a binary answer is accepted")
    return True


def _binary(results: list[dict[str, Any]], transport: Transport) -> Body:
    vectors = [vector for meta in results for vector in _vectors(meta)]
    return binary(vectors, [meta["prompt_tokens"] for meta in results], transport, results[0][APPLIED])


def _entries(prompt: int, meta: dict[str, Any], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Of ``data``: a prompt's vector, or one for each span; null and the error if it failed."""
    if "error" in meta:
        place = {} if options.get("spans") is None else {"prompt": prompt}
        return [{"object": "embedding", "embedding": None, "error": meta["error"], **place}]
    return [
        {"object": "embedding", "embedding": vector, APPLIED: meta[APPLIED], **place}
        for vector, place in zip(_vectors(meta), _places(prompt, options), strict=True)
    ]


def _vectors(meta: dict[str, Any]) -> list[Any]:
    """Of one prompt: one, or one for each span."""
    return meta["embeddings"] if "embeddings" in meta else [meta["embedding"]]


def _places(prompt: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Which prompt and span each of its vectors is of; nothing where there are no spans."""
    spans = options.get("spans")
    return [{}] if spans is None else [{"prompt": prompt, "span": list(span)} for span in spans]


def _encoding(body: dict[str, Any], transport: Transport) -> object:
    """A binary body holds the numbers themselves, whatever the JSON field says; it is checked all the same."""
    encoding = body.get("encoding_format")
    if encoding is None:
        return Encoding.FLOAT.value
    if transport is not Transport.JSON and encoding in list(Encoding):
        return Encoding.FLOAT.value
    return encoding


def _options(body: dict[str, Any], transport: Transport, model: Model) -> dict[str, Any]:
    """A ``return_embedding`` object: the request's options, and the server's where it does not say."""
    own = {key: whole(body[key]) for key in OPTIONS if body.get(key) is not None}
    options = {key: getattr(model.defaults, key) for key in OPTIONS} | own
    options |= {"encoding_format": _encoding(body, transport)} | (
        {} if body.get("spans") is None else {"spans": body["spans"]}
    )
    try:
        chosen(read({FIELD: options}, EmbedFields), model.hidden_size)
    except BadRequest as error:
        field = error.field.removeprefix(f"{FIELD}.")
        raise BadRequest(field, options.get(field), error.allowed) from error
    return options
