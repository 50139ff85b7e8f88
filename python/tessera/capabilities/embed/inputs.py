"""What the embedding routes are given to embed: texts, token ids, or a chat; cut to its last tokens where asked."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from tessera.capabilities.embed.bodies import ChatMessage
from tessera.errors import BadRequest
from tessera.fields import as_integer
from tessera.http.body import check_count, strings, token_ids

TRUNCATE = "truncate_prompt_tokens"
MESSAGES = "messages"

Prompts = dict[str, Any]
"""``{"text": [...]}`` or ``{"input_ids": [[...], ...]}``, and ``lora_path`` where an adapter is named."""


class Tokenizer(NamedTuple):
    """The model's tokenizer.

    Attributes:
        encode: token ids of texts, as the engine would make them.
        render: token ids of a chat, from its messages and whether the template starts the answer.
    """

    encode: Callable[[list[str]], list[list[int]]]
    render: Callable[[list[dict[str, str]], bool], list[int]]


class Limits(NamedTuple):
    """The limits of prompts.

    Attributes:
        vocabulary: how many token ids there are.
        prompt: tokens of a prompt at most.
        text_only: whether token ids are refused.
    """

    vocabulary: int
    prompt: int
    text_only: bool


def prompts_of(field: str, value: object, limits: Limits) -> Prompts:
    """A text, texts, token ids, or a list of token ids.

    Raises:
        BadRequest: something else; token ids where they are refused.
    """
    if not isinstance(value, list) or not _holds_ids(value):
        return {"text": strings(field, value)}
    if limits.text_only:
        raise BadRequest(field, value, "texts, no token ids: this server runs with --embeddings-text-only")
    if not isinstance(value[0], list):
        return {"input_ids": [_ids(field, value, limits)]}
    check_count(field, value)
    return {"input_ids": [_ids(f"{field}[{i}]", item, limits) for i, item in enumerate(value)]}


def items_of(field: str, value: object, limits: Limits) -> list[Prompts | BadRequest]:
    """Each prompt by itself, or what is wrong with it; the first one says whether they are texts or token ids.

    Raises:
        BadRequest: it is not about one prompt.
    """
    if not isinstance(value, list) or not _holds_ids(value):
        return texts_of(field, value)
    if limits.text_only or not isinstance(value[0], list):
        return [prompts_of(field, value, limits)]
    check_count(field, value)
    return [
        _tried(lambda name, ids: {"input_ids": [_ids(name, ids, limits)]}, field, i, v) for i, v in enumerate(value)
    ]


def texts_of(field: str, value: object) -> list[Prompts | BadRequest]:
    """Each text by itself, or what is wrong with it.

    Raises:
        BadRequest: it is not about one text.
    """
    if not isinstance(value, list):
        return [{"text": strings(field, value)}]
    check_count(field, value)
    return [_tried(lambda name, text: {"text": [_text(name, text)]}, field, i, v) for i, v in enumerate(value)]


def _holds_ids(value: list[Any]) -> bool:
    """Whether a list is of token ids, or of lists of them: its first item says so."""
    return bool(value) and isinstance(value[0], int | float | list)


def _tried(make: Callable[[str, object], Prompts], field: str, i: int, value: object) -> Prompts | BadRequest:
    try:
        return make(f"{field}[{i}]", value)
    except BadRequest as error:
        return error


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest(field, value, "a text that is not empty")
    return value


def chat_of(messages: Sequence[ChatMessage], tokenizer: Tokenizer | None, *, generation: bool) -> Prompts:
    """The tokens of a chat, as the model's chat template writes them.

    Raises:
        BadRequest: the template refuses them.
    """
    given = msgspec.to_builtins(messages)
    if tokenizer is None:
        raise BadRequest(MESSAGES, given, "nothing: this server has no tokenizer")
    try:
        return {"input_ids": [tokenizer.render(given, generation)]}
    except ValueError as error:
        raise BadRequest(MESSAGES, given, f"what the chat template takes: {error}") from error


def truncate(prompts: Prompts, most: int | None, tokenizer: Tokenizer | None) -> Prompts:
    """The last tokens of each prompt.

    Raises:
        BadRequest: texts, and nothing that makes tokens of them.
    """
    if most is None:
        return prompts
    if "text" not in prompts:
        each: Sequence[list[int]] = prompts["input_ids"]
    elif tokenizer is None:
        raise BadRequest(TRUNCATE, most, "nothing with texts: this server has no tokenizer")
    else:
        each = tokenizer.encode(prompts["text"])
    return {
        **{name: value for name, value in prompts.items() if name != "text"},
        "input_ids": [i[-most:] for i in each],
    }


def _ids(field: str, item: object, limits: Limits) -> list[int]:
    if not isinstance(item, list):
        raise BadRequest(field, item, "a list of token ids, as the first one is")
    try:
        return token_ids(field, item, limits.vocabulary)
    except BadRequest:  # 3.0, perhaps
        return token_ids(field, [as_integer(own) for own in item], limits.vocabulary)
