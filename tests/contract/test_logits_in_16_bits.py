"""Logits in the type of the weights: the numbers that SGLang's own function has in float32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from tessera_patches.tilespec.verify.logits import is_draft_mode, keep_logits_in_16_bits

ROWS, HIDDEN, VOCABULARY = 5, 16, 40


def model_of(vocabulary: int = VOCABULARY, **changes: Any) -> Any:
    """A model whose logits SGLang's own functions compute."""
    processor: Any = LogitsProcessor.__new__(LogitsProcessor)
    torch.nn.Module.__init__(processor)
    plain = {
        **dict.fromkeys(("logit_scale", "final_logit_softcapping", "rl_on_policy_target")),
        **dict.fromkeys(("do_tensor_parallel_all_gather", "do_tensor_parallel_all_gather_dp_attn"), False),
        "use_fp32_lm_head": False,
        "vocab_size": VOCABULARY,
    }
    for name, value in (plain | changes).items():
        setattr(processor, name, value)
    weight = torch.randn(vocabulary, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
    return SimpleNamespace(logits_processor=processor, lm_head=SimpleNamespace(weight=weight))


def logits_of(
    model: Any, mode: ForwardMode, room: torch.Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> Any:
    """What its processor computes."""
    states = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(2)).to(dtype)
    return model.logits_processor._get_logits(
        states, model.lm_head, LogitsMetadata(mode, next_token_logits_buffer=room)
    )


@pytest.mark.parametrize("captured", [True, False])
def test_the_same_numbers(captured: bool) -> None:
    """In a graph they lie in the memory that SGLang has for them, where nothing beyond is written."""
    expected = logits_of(model_of(), ForwardMode.TARGET_VERIFY)
    assert expected.dtype == torch.float32
    model = model_of()
    keep_logits_in_16_bits(model, ForwardMode.is_target_verify)
    room = torch.full((ROWS, VOCABULARY), torch.nan) if captured else None
    found = logits_of(model, ForwardMode.TARGET_VERIFY, room)
    assert found.dtype == torch.bfloat16
    assert found.shape == (ROWS, VOCABULARY)
    assert torch.equal(found.float(), expected)
    if room is not None:
        assert found.data_ptr() == room.data_ptr()
        assert int(room.isnan().sum()) == room.numel() // 2


@pytest.mark.parametrize(
    "changes",
    [
        {"logit_scale": 0.5},
        {"final_logit_softcapping": 30.0},
        {"use_fp32_lm_head": True},
        {"use_fp32_lm_head_output": True},
        {"vocab_size": VOCABULARY - 8},
        {"vocabulary": VOCABULARY + 24},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_where_more_is_done_they_are_sglangs(changes: dict[str, Any]) -> None:
    """Scaled, capped, in float32, or of a matrix with more rows than the vocabulary has tokens."""
    model = model_of(**changes)
    expected = None if "final_logit_softcapping" in changes else logits_of(model, ForwardMode.TARGET_VERIFY)
    original = model.logits_processor._get_logits
    keep_logits_in_16_bits(model, ForwardMode.is_target_verify)
    if expected is None:
        assert model.logits_processor._get_logits == original  # a kernel for GPUs caps them
    else:
        assert torch.equal(logits_of(model, ForwardMode.TARGET_VERIFY), expected)
        assert expected.dtype == torch.float32


def test_other_modes_and_types_are_sglangs() -> None:
    """A prompt's logits, which SGLang samples from; and those of float32."""
    model = model_of()
    keep_logits_in_16_bits(model, is_draft_mode)
    assert [is_draft_mode(mode) for mode in (ForwardMode.DECODE, ForwardMode.DRAFT_EXTEND_V2)] == [True, True]
    assert logits_of(model, ForwardMode.DECODE).dtype == torch.bfloat16
    assert logits_of(model, ForwardMode.EXTEND).dtype == torch.float32
    model.lm_head.weight = model.lm_head.weight.float()
    assert logits_of(model, ForwardMode.DECODE, dtype=torch.float32).dtype == torch.float32
