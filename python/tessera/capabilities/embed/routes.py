"""``POST /v1/embeddings`` (OpenAI) and ``POST /encode`` (``{"text": ...}``) on a server that generates."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from tessera.capabilities.embed.options import APPLIED, FIELD, EmbedFields, EmbedOptions, Encoding, chosen
from tessera.errors import BadRequest
from tessera.fields import read, whole
from tessera.http import adapters
from tessera.http.body import Streamed, check_count, read_object, strings, token_ids
from tessera.http.vectors import Body, Transport, accepted, binary

OPTIONS = ("dimensions", "pooling", "normalize")
"""Those that the server has a default for."""
OPENAI_KEYS = ("input", "model", "encoding_format", "user", *OPTIONS, "spans", adapters.FIELD)
ENCODE_KEYS = ("text", "hidden_size", "encoding_format", *OPTIONS, "spans", adapters.FIELD)

Prompts = dict[str, Any]
"""``{"text": [...]}`` or ``{"input_ids": [[...], ...]}``, and ``lora_path`` where an adapter is named."""
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
    """

    name: str
    hidden_size: int
    vocabulary: int
    defaults: EmbedOptions = EmbedOptions()
    text_only: bool = False
    adapters: Collection[str] = ()


async def openai(request: Incoming, embed: Embed, model: Model) -> dict[str, Any] | Body:
    """Answer ``/v1/embeddings``.

    Args:
        request: its body has ``input`` (text, texts, token ids, list of token ids), ``model``, ``encoding_format``,
            ``dimensions``, ``user``, our ``pooling``, ``normalize`` and ``spans``, and ``lora_path``.
        embed: runs the prompts.
        model: what is served.

    Raises:
        BadRequest: a field is wrong.
    """
    body = await read_object(request, OPENAI_KEYS)
    transport = accepted(request.headers.get("accept"))
    options = _options(body, transport, model)
    adapter = adapters.of_openai(body.get("model"), body.get(adapters.FIELD), model.name, model.adapters)
    metas = await embed(_prompts(body.get("input"), model) | _with(adapter), options)
    tokens = [meta["prompt_tokens"] for meta in metas]
    if transport is not Transport.JSON:
        return binary([vector for meta in metas for vector in _vectors(meta)], tokens, transport, metas[0][APPLIED])
    data = [
        {"object": "embedding", "embedding": vector, APPLIED: meta[APPLIED], **place}
        for i, meta in enumerate(metas)
        for vector, place in zip(_vectors(meta), _places(i, options), strict=True)
    ]
    data = [{**entry, "index": i} for i, entry in enumerate(data)]
    usage = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


async def encode(request: Incoming, embed: Embed, model: Model) -> dict[str, Any] | Body:
    """Answer ``/encode``: ``embedding`` for one text and ``embeddings`` for a list, with the options of `openai`.

    With ``spans`` it is ``embeddings``, one vector for each span, and for a list of texts a list of these.

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
    metas = await embed({"text": strings("text", text)} | _with(adapter), options)
    if transport is not Transport.JSON:
        vectors = [vector for meta in metas for vector in _vectors(meta)]
        return binary(vectors, [meta["prompt_tokens"] for meta in metas], transport, metas[0][APPLIED])
    if body.get("spans") is None:
        vectors = [meta["embedding"] for meta in metas]
        return {"embeddings": vectors} if isinstance(text, list) else {"embedding": vectors[0]}
    spanned = [meta["embeddings"] for meta in metas]
    return {"embeddings": spanned if isinstance(text, list) else spanned[0]}


def _vectors(meta: dict[str, Any]) -> list[Any]:
    """Of one prompt: one, or one for each span."""
    return meta["embeddings"] if "embeddings" in meta else [meta["embedding"]]


def _places(prompt: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Which prompt and span each of its vectors is of; nothing where there are no spans."""
    spans = options.get("spans")
    return [{}] if spans is None else [{"prompt": prompt, "span": list(span)} for span in spans]


def _with(adapter: str | None) -> Prompts:
    return {} if adapter is None else {adapters.FIELD: adapter}


def _encoding(body: dict[str, Any], transport: Transport) -> object:
    """A binary body holds the numbers themselves, whatever the JSON field says; it is checked all the same."""
    asked = body.get("encoding_format")
    if asked is None:
        return Encoding.FLOAT.value
    if transport is not Transport.JSON and asked in list(Encoding):
        return Encoding.FLOAT.value
    return asked


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


def _prompts(value: object, model: Model) -> Prompts:
    if not isinstance(value, list) or not value or not isinstance(value[0], int | float | list):
        return {"text": strings("input", value)}
    if model.text_only:
        raise BadRequest("input", value, "texts, no token ids: this server runs with --embeddings-text-only")
    if not isinstance(value[0], list):
        return {"input_ids": [_ids("input", value, model.vocabulary)]}
    check_count("input", value)
    return {"input_ids": [_ids(f"input[{i}]", item, model.vocabulary) for i, item in enumerate(value)]}


def _ids(field: str, item: object, vocabulary: int) -> list[int]:
    if not isinstance(item, list):
        raise BadRequest(field, item, "a list of token ids, as the first one is")
    return token_ids(field, [whole(own) for own in item], vocabulary)
