"""Answers whose messages do not say which tokens were generated, by what the server does with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

from tessera.capabilities.fingerprints.options import ToplocClaim
from tessera_patches.fingerprints.claimed_chats import continue_answer, tokens_of, why_unverifiable


def serving_with(parser: str | None, **functions: Any) -> Any:
    """What of SGLang's ``OpenAIServingChat`` is read, with bytes for tokens."""
    tokenizer = SimpleNamespace(encode=lambda text: list(text.encode()), bos_token_id=None)
    manager = SimpleNamespace(tokenizer=tokenizer)
    return SimpleNamespace(reasoning_parser=parser, tokenizer_manager=manager, **functions)


@pytest.mark.parametrize("parser", ["qwen3", None])
def test_a_reasoning_parser_takes_reasoning_out_of_answers(parser: str | None) -> None:
    """So what such a server answered with is not all that it generated."""
    messages: Any = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "four"}]
    request = ChatCompletionRequest(messages=messages)
    serving = serving_with(parser)
    reason = why_unverifiable(request.messages, serving)
    if parser is None:
        assert reason == ""
        assert continue_answer(request, serving) == 4
        assert request.continue_final_message
    else:
        assert reason.startswith("an answer without its reasoning")


def test_a_claim_is_rendered_with_all_that_its_chat_was_asked_for_with() -> None:
    """Tools and the template's own options are a part of the prompt."""
    rendered: list[ChatCompletionRequest] = []

    def convert(request: ChatCompletionRequest) -> tuple[Any, ChatCompletionRequest]:
        rendered.append(request)
        return SimpleNamespace(input_ids=[5, 6, 7], text=None), request

    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4!"}]
    tool = {"type": "function", "function": {"name": "push"}}
    claim = ToplocClaim(messages=messages, tools=[tool], chat_template_kwargs={"enable_thinking": False})
    chat = tokens_of("claims[0]", claim, serving_with(None, _convert_to_internal_request=convert))
    assert chat == ([5, 6, 7], 2)
    (request,) = rendered
    assert request.continue_final_message
    assert [one.function.name for one in request.tools or []] == ["push"]
    assert request.chat_template_kwargs == {"enable_thinking": False}
