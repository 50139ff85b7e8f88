"""Draft-extends that compute logits of last accepted rows alone: which rows these are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

from tessera_patches.tilespec_drafts import last_rows_only

WIDTH = 3


def model_of_rows(inner: bool) -> SimpleNamespace:
    """A model whose logits are numbers of rows. As SGLang it picks rows by `select_index`, of inner layers not."""

    def forward(input_ids: torch.Tensor, _: torch.Tensor, forward_batch: SimpleNamespace) -> LogitsProcessorOutput:
        rows = torch.arange(len(input_ids))[:, None]
        picked = rows[forward_batch.spec_info.select_index]
        return LogitsProcessorOutput(next_token_logits=picked, hidden_states=rows if inner else picked)

    model = SimpleNamespace(forward=forward)
    last_rows_only(model)
    return model


def extend(accepted: list[int], inner: bool = False) -> LogitsProcessorOutput:
    """Of as many requests, each with `WIDTH` rows."""
    drafts = EagleDraftExtendInput(
        num_accept_tokens=torch.tensor(accepted, dtype=torch.int32), num_tokens_per_req=WIDTH
    )
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DRAFT_EXTEND_V2,
        batch_size=len(accepted),
        spec_info=drafts,
        next_token_logits_buffer=None,
    )
    ids = torch.zeros(len(accepted) * WIDTH, dtype=torch.int64)
    output = model_of_rows(inner).forward(ids, ids, batch)
    assert isinstance(output, LogitsProcessorOutput)
    return output


@pytest.mark.parametrize("inner", [False, True])
def test_each_requests_last_accepted_row(inner: bool) -> None:
    """Logits and states, of one layer and of several."""
    output = extend([1, 3, 2], inner)
    assert output.next_token_logits is not None
    assert output.hidden_states is not None
    assert output.next_token_logits.flatten().tolist() == output.hidden_states.flatten().tolist() == [0, 5, 7]


def test_numbers_of_a_wider_graph_stay_within_the_request() -> None:
    """Where SGLang captures graphs of several widths one buffer has these numbers, at first of the widest."""
    output = extend([8, 8])
    assert output.next_token_logits is not None
    assert output.next_token_logits.flatten().tolist() == [2, 5]
