"""``POST /v1/embeddings`` (OpenAI) and ``POST /encode`` (``{"text": ...}``) on a server that generates."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from tessera.capabilities.embed import inputs
from tessera.capabilities.embed.bodies import EmbeddingsRequest, EncodeRequest
from tessera.capabilities.embed.inputs import Limits, Prompts, Tokenizer
from tessera.capabilities.embed.options import APPLIED, EmbedFields, EmbedOptions, Encoding, options_of
from tessera.errors import BadRequest, TesseraError
from tessera.fields import as_integer, read
from tessera.http import adapters
from tessera.http.body import Streamed, read_object, strings
from tessera.http.error_body import error_body, note_items
from tessera.http.vectors import Body, Transport, accepted_transport, binary

OPTIONS = ("dimensions", "pooling", "normalize")
"""Options that have a server default."""
_NUMBERS = ("dimensions", inputs.TRUNCATE)
B = TypeVar("B", EmbeddingsRequest, EncodeRequest)

Embed = Callable[[Prompts, dict[str, Any]], Awaitable[list[dict[str, Any]]]]
"""From prompts and a ``return_embedding`` object to the ``meta_info`` of each prompt's answer."""


class Incoming(Streamed, Protocol):
    """What we need of ``starlette.requests.Request``."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are not case-sensitive."""


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
        """The limits of prompts on these routes."""
        return Limits(self.vocabulary, self.prompt, self.text_only)


async def openai(request: Incoming, embed: Embed, model: Model) -> dict[str, Any] | Body:
    """Answer ``/v1/embeddings``.

    Args:
        request: its body is an `EmbeddingsRequest`.
        embed: runs the prompts.
        model: what is served.

    Raises:
        BadRequest: a field is wrong.
    """
    body = await _read(request, EmbeddingsRequest)
    transport = accepted_transport(request.headers.get("accept"))
    options = _options(body, transport, model)
    adapter = adapters.of_openai(body.model, body.lora_path, model.name, model.adapters)
    call = _Call(embed, options, adapter, _truncation(body, model), model.tokenizer)
    if _nulls(body, transport, alone=body.messages is None):
        results = await call.each("input", inputs.items_of("input", body.input, model.limits))
    elif body.messages is None:
        results = await call.run(inputs.prompts_of("input", body.input, model.limits))
    elif body.input is not None:
        raise BadRequest("input", body.input, f"nothing beside {inputs.MESSAGES}")
    else:
        generation = bool(body.add_generation_prompt)
        results = await call.run(inputs.chat_of(body.messages, model.tokenizer, generation=generation))
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
    body = await _read(request, EncodeRequest)
    if body.hidden_size is not None and body.hidden_size != model.hidden_size:
        raise BadRequest("hidden_size", body.hidden_size, f"{model.hidden_size}, this model's")
    transport = accepted_transport(request.headers.get("accept"))
    options = _options(body, transport, model)
    adapter = adapters.check_loaded(adapters.FIELD, body.lora_path or None, model.adapters)
    call = _Call(embed, options, adapter, _truncation(body, model), model.tokenizer)
    if _nulls(body, transport):
        results = await call.each("text", inputs.texts_of("text", body.text))
    else:
        results = await call.run({"text": strings("text", body.text)})
    if transport is not Transport.JSON:
        return _binary(results, transport)
    name = "embedding" if body.spans is None else "embeddings"
    vectors = [meta.get(name) for meta in results]
    errors = {} if body.on_error is None else {"errors": [meta.get("error") for meta in results]}
    if not isinstance(body.text, list):
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
        return await self.embed(inputs.truncate(prompts, self.most, self.tokenizer) | lora, self.options)

    async def each(self, field: str, prompts: Sequence[Prompts | BadRequest]) -> list[dict[str, Any]]:
        """The ``meta_info`` of each prompt, run by itself: ``{"error": ...}`` if it fails."""
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


async def _read(request: Incoming, body: type[B]) -> B:
    given = await read_object(request, body.__struct_fields__)
    return read(given | {name: as_integer(given[name]) for name in _NUMBERS if name in given}, body)


def _nulls(body: EmbeddingsRequest | EncodeRequest, transport: Transport, *, alone: bool = True) -> bool:
    """Whether a prompt that fails is null in the answer, and others are answered.

    Raises:
        BadRequest: ``on_error`` beside ``messages`` (not ``alone``), or with a binary answer.
    """
    if body.on_error is not None and (transport is not Transport.JSON or not alone):
        raise BadRequest("on_error", body.on_error, "nothing beside messages, or where a binary answer is accepted")
    return body.on_error is not None


def _truncation(body: EmbeddingsRequest | EncodeRequest, model: Model) -> int | None:
    """How many tokens of each prompt are left at most, None for all."""
    most = body.truncate_prompt_tokens
    return model.prompt if most == -1 else most


def _binary(results: list[dict[str, Any]], transport: Transport) -> Body:
    vectors = [vector for meta in results for vector in _vectors(meta)]
    return binary(vectors, [meta["prompt_tokens"] for meta in results], transport, results[0][APPLIED])


def _entries(prompt: int, meta: dict[str, Any], options: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of ``data`` for a prompt: its vector, or one for each span; null and the error if it failed."""
    if "error" in meta:
        place = {} if options.get("spans") is None else {"prompt": prompt}
        return [{"object": "embedding", "embedding": None, "error": meta["error"], **place}]
    return [
        {"object": "embedding", "embedding": vector, APPLIED: meta[APPLIED], **place}
        for vector, place in zip(_vectors(meta), _places(prompt, options), strict=True)
    ]


def _vectors(meta: dict[str, Any]) -> list[Any]:
    """The vectors of one prompt: one, or one for each span."""
    return meta["embeddings"] if "embeddings" in meta else [meta["embedding"]]


def _places(prompt: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Which prompt and span each of its vectors is of; nothing where there are no spans."""
    spans = options.get("spans")
    return [{}] if spans is None else [{"prompt": prompt, "span": list(span)} for span in spans]


def _options(body: EmbeddingsRequest | EncodeRequest, transport: Transport, model: Model) -> dict[str, Any]:
    """A ``return_embedding`` object: the request's options, and the server's where it does not say.

    A binary body holds the numbers themselves, whatever ``encoding_format`` says.
    """
    own = {name: value for name in OPTIONS if (value := getattr(body, name)) is not None}
    encoding = body.encoding_format if transport is Transport.JSON else None
    options = replace(model.defaults, **own, encoding_format=encoding or Encoding.FLOAT, spans=body.spans)
    options_of(EmbedFields(options), model.hidden_size, where="")
    return dict(msgspec.json.decode(msgspec.json.encode(options)))  # with lists, as a client has them
