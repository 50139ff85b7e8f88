"""Prompts that SGLang refuses for their length: which one, and how long it is, without another look at its text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers import io_struct
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.runtime_context import get_context

from tessera.errors import EngineRefused
from tessera_patches.fingerprints.whole_claims import check_claim
from tessera_patches.http import embeddings

CONTEXT = 4096


class Manager(SimpleNamespace):
    """What SGLang's check reads; there is no tokenizer."""

    async def generate_request(self, obj: Any, _: object) -> AsyncIterator[Any]:
        """Checks each text: its characters are its tokens."""
        for text in obj.text:
            one = SimpleNamespace(text=text, input_ids=None, sampling_params=obj.sampling_params)
            check(self, one, list(range(len(text))))
        yield []


def manager(reserved: int) -> Manager:
    """Of a server that keeps so many slots for drafts."""
    return Manager(
        context_len=CONTEXT,
        num_reserved_tokens=reserved,
        allow_auto_truncate=False,
        validate_total_tokens=True,
        _validate_joint_schema_request=lambda *_: None,
    )


def check(served: Manager, obj: Any, ids: list[int]) -> None:
    """SGLang's, with our hook around it."""
    with get_context().override_server_args():
        check_claim(TokenizerManager._validate_one_request, served, obj, ids)


@pytest.mark.parametrize(
    ("reserved", "length", "new", "message"),
    [
        (0, 5000, 0, "The input (5000 tokens) is longer"),
        (6, 4095, 0, "The input (4095 tokens and 6 reserved for drafts) is longer"),
        (6, 4000, 100, "4000 tokens and 6 reserved for drafts from the input messages and 100 tokens for"),
    ],
)
def test_a_refusal_has_the_prompts_own_length(reserved: int, length: int, new: int, message: str) -> None:
    """What is reserved is told apart."""
    obj = SimpleNamespace(text="x", input_ids=None, sampling_params={"max_new_tokens": new})
    with pytest.raises(ValueError) as refused:
        check(manager(reserved), obj, list(range(length)))
    assert message in str(refused.value)


@pytest.mark.parametrize("reserved", [0, 6])
def test_the_item_is_named(monkeypatch: pytest.MonkeyPatch, reserved: int) -> None:
    """The first that is too long, with what is reserved for drafts."""
    monkeypatch.setattr(io_struct, "GenerateReqInput", SimpleNamespace)
    embed = embeddings._embed(manager(reserved), None, "text")  # type: ignore[arg-type]

    async def embedded() -> object:
        return await embed({"text": ["a", "b" * (CONTEXT - reserved), "c" * CONTEXT]}, {})

    with pytest.raises(EngineRefused) as refused:
        asyncio.run(embedded())
    assert refused.value.field == "text[1]"
