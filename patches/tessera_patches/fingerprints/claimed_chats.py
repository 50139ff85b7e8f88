"""Chats whose last message is a claimed answer: which tokens they stand for. Main process."""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from pydantic import ValidationError
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

from tessera.capabilities.fingerprints.claims import Chat, Unverifiable
from tessera.capabilities.fingerprints.options import WITH_MESSAGES, ToplocClaim
from tessera.errors import BadRequest
from tessera.limits import MAX_ECHOED_CHARACTERS
from tessera_patches.engine.tokenizer import tokenizer_of

_GIVE_IDS = "the messages do not say which tokens were generated; give input_ids and output_ids"


def why_unverifiable(messages: Sequence[Any], serving: Any) -> str:
    """What hides which tokens were read, or generated for the last message; "" if nothing does.

    Args:
        messages: of SGLang's request.
        serving: SGLang's ``OpenAIServingChat``.
    """
    contents = [message.content for message in messages if isinstance(message.content, list)]
    kinds = {part.type for content in contents for part in content} - {"text"}
    if kinds - {"thinking"}:
        return "an image, audio or video: what was computed from it is not verified"
    answer = _answer(messages)
    if answer is None:
        return ""
    if answer.tool_calls:
        return f"an answer with tool calls: {_GIVE_IDS}"
    if kinds or answer.reasoning_content or serving.reasoning_parser:
        return f"an answer without its reasoning as it was generated: {_GIVE_IDS}"
    return "" if isinstance(answer.content, str) else f"an answer that is not one text: {_GIVE_IDS}"


def continue_answer(request: Any, serving: Any) -> int:
    """Let SGLang append the last message's text to the prompt, as it was generated; returns its number of tokens.

    0 where the messages end with no answer: only the prompt is claimed.

    Args:
        request: SGLang's, with messages that can be verified.
        serving: SGLang's ``OpenAIServingChat``.
    """
    answer = _answer(request.messages)
    if answer is None:
        return 0
    request.continue_final_message = True
    tokenizer = serving.tokenizer_manager.tokenizer
    ids: list[int] = tokenizer.encode(answer.content)
    return len(ids) - (ids[:1] == [tokenizer.bos_token_id])


def tokens_of(name: str, given: ToplocClaim, serving: Any) -> Chat | Unverifiable:
    """The tokens of a claim that has messages.

    Args:
        name: the claim's place in the request, for the message.
        given: what came.
        serving: SGLang's ``OpenAIServingChat``.

    Raises:
        BadRequest: it is no chat, or none that the chat template takes; the server has no tokenizer.
    """
    tokenizer = tokenizer_of(serving.tokenizer_manager)
    if tokenizer is None:
        raise BadRequest(f"{name}.messages", given.messages, "nothing: this server has no tokenizer")
    chat = {field: value for field in WITH_MESSAGES if (value := getattr(given, field)) is not None}
    try:
        request = ChatCompletionRequest(**chat, max_tokens=1)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(".".join([name, *map(str, first["loc"])]), first["input"], first["msg"]) from error
    except (TypeError, AttributeError, LookupError) as error:  # its validators expect other types
        raise BadRequest(f"{name}.messages", given.messages, "what /v1/chat/completions takes") from error
    if not request.messages:
        raise BadRequest(f"{name}.messages", given.messages, "a list of at least one message")
    if reason := why_unverifiable(request.messages, serving):
        return Unverifiable(reason)
    answer_tokens = continue_answer(request, serving)
    try:
        engines, _ = serving._convert_to_internal_request(request)
    except (ValueError, TemplateError) as error:
        why = str(error)[:MAX_ECHOED_CHARACTERS]
        raise BadRequest(f"{name}.messages", given.messages, f"what the chat template takes: {why}") from error
    ids = engines.input_ids
    return Chat(ids if ids is not None else tokenizer.encode([engines.text])[0], answer_tokens)


def _answer(messages: Sequence[Any]) -> Any:
    return next((last for last in messages[-1:] if last.role == "assistant"), None)
