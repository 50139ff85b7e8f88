"""Answers whose messages do not say which tokens were generated, by what the server does with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

from tessera.errors import BadRequest
from tessera_patches.http import openai


@pytest.mark.parametrize("parser", ["qwen3", None])
def test_a_reasoning_parser_takes_reasoning_out_of_answers(parser: str | None) -> None:
    """So what such a server answered with is not all that it generated."""
    messages: Any = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "four"}]
    request = ChatCompletionRequest(messages=messages)
    tokenizer = SimpleNamespace(encode=lambda text: list(text.encode()), bos_token_id=None)
    serving = SimpleNamespace(reasoning_parser=parser, tokenizer_manager=SimpleNamespace(tokenizer=tokenizer))
    if parser is None:
        assert openai._claimed_answer(request, serving) == 4
        assert request.continue_final_message
    else:
        with pytest.raises(BadRequest, match="an answer without its reasoning"):
            openai._claimed_answer(request, serving)
