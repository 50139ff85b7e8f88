"""Draft-extends that compute logits of last accepted rows alone: which rows these are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.llama import LlamaAttention
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

from tessera_patches.tilespec.extend.last_rows import attends_in_one_layer, compute_last_rows_only

WIDTH = 3


def model_of_rows(inner: bool) -> SimpleNamespace:
    """A model whose logits are numbers of rows. As SGLang it picks rows by `select_index`, of inner layers not."""

    def forward(input_ids: torch.Tensor, _: torch.Tensor, forward_batch: SimpleNamespace) -> LogitsProcessorOutput:
        rows = torch.arange(len(input_ids))[:, None]
        picked = rows[forward_batch.spec_info.select_index]
        return LogitsProcessorOutput(next_token_logits=picked, hidden_states=rows if inner else picked)

    model = SimpleNamespace(forward=forward)
    compute_last_rows_only(model)
    return model


class Mlp:
    """Adds 1, and keeps how many rows it was given. As SGLang's by its parts' names."""

    gate_up_proj = down_proj = None

    def __init__(self) -> None:
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, forward_batch: object = None) -> torch.Tensor:
        """Of rows alone, or with a batch, as SGLang's layers call theirs."""
        del forward_batch
        self.seen.append(len(x))
        return x + 1


class Layered:
    """A model of two layers that are an MLP, whose logits are what the last one makes of numbers of rows."""

    def __init__(self, *positional: object, **named: object) -> None:
        self.layers = [SimpleNamespace(mlp=Mlp()), SimpleNamespace(mlp=Mlp())]
        self.model = SimpleNamespace(layers=self.layers)
        self.positional, self.named = positional, named

    def forward(
        self, input_ids: torch.Tensor, _: torch.Tensor, forward_batch: SimpleNamespace
    ) -> LogitsProcessorOutput:
        """See `LlamaForCausalLM.forward`."""
        states = torch.arange(len(input_ids))[:, None]
        for layer in self.layers:
            states = layer.mlp.forward(states, *self.positional, **self.named)
        picked = getattr(forward_batch.spec_info, "select_index", None)
        return LogitsProcessorOutput(next_token_logits=states if picked is None else states[picked])


def batch_of(accepted: list[int], mode: ForwardMode = ForwardMode.DRAFT_EXTEND_V2) -> SimpleNamespace:
    """As many requests, each with `WIDTH` rows."""
    drafts = EagleDraftExtendInput(
        num_accept_tokens=torch.tensor(accepted, dtype=torch.int32), num_tokens_per_req=WIDTH
    )
    return SimpleNamespace(forward_mode=mode, batch_size=len(accepted), spec_info=drafts, next_token_logits_buffer=None)


def extend(accepted: list[int], inner: bool = False) -> LogitsProcessorOutput:
    """Of as many requests, each with `WIDTH` rows."""
    ids = torch.zeros(len(accepted) * WIDTH, dtype=torch.int64)
    output = model_of_rows(inner).forward(ids, ids, batch_of(accepted))
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


@pytest.mark.parametrize(
    ("mode", "positional", "named", "seen"),
    [
        (ForwardMode.DRAFT_EXTEND_V2, (), {}, [9, 3]),
        (ForwardMode.DRAFT_EXTEND_V2, (), {"forward_batch": "the batch"}, [9, 3]),
        (ForwardMode.DRAFT_EXTEND_V2, ("how rows lie",), {}, [9, 9]),
        (ForwardMode.DECODE, (), {}, [9, 9]),
    ],
    ids=["extend", "extend with its batch", "extend of rows elsewhere", "decode"],
)
def test_the_last_mlp_computes_them_alone(
    mode: ForwardMode, positional: tuple[object, ...], named: dict[str, object], seen: list[int]
) -> None:
    """In draft-extends, where it is called with rows, and the batch by its name; the others, of other layers, all."""
    model = Layered(*positional, **named)
    compute_last_rows_only(model)
    ids = torch.zeros(9, dtype=torch.int64)
    logits = model.forward(ids, ids, batch_of([1, 3, 2], mode)).next_token_logits
    assert logits is not None
    assert [count for layer in model.layers for count in layer.mlp.seen] == seen
    assert logits.flatten().tolist() == [row + 2 for row in ([0, 5, 7] if mode.is_draft_extend_v2() else range(9))]


class Model:
    """Of one layer, whose attention has numbers of rows, or of those picked alone, and whose last product adds 1."""

    def __init__(self, kind: Any, once: bool) -> None:
        attention: Any = kind.__new__(kind)
        attention.__dict__["o_proj"] = SimpleNamespace(forward=lambda x: (x + 1, "bias"))
        self.model = SimpleNamespace(layers=[SimpleNamespace(self_attn=attention)])
        self.once = once

    def forward(
        self, input_ids: torch.Tensor, _: torch.Tensor, forward_batch: SimpleNamespace
    ) -> LogitsProcessorOutput:
        """See `LlamaAttention.forward`, and `LastQueryTriton`."""
        states = torch.arange(len(input_ids))[:, None] * 10
        picked = getattr(forward_batch.spec_info, "select_index", None)
        attended = states[picked] if self.once and picked is not None else states
        output, bias = self.model.layers[0].self_attn.o_proj.forward(attended)
        assert bias == "bias"
        states = states + output
        return LogitsProcessorOutput(next_token_logits=states if picked is None else states[picked])


@pytest.mark.parametrize("mode", [ForwardMode.DRAFT_EXTEND_V2, ForwardMode.DECODE])
@pytest.mark.parametrize("once", [False, True])
def test_attention_may_compute_them_alone(mode: ForwardMode, once: bool) -> None:
    """Its output has a row for each again, zeros where nobody looks."""
    model: Any = Model(LlamaAttention, once)
    compute_last_rows_only(model)
    ids = torch.zeros(9, dtype=torch.int64)
    logits = model.forward(ids, ids, batch_of([1, 3, 2], mode)).next_token_logits
    assert logits is not None
    assert logits.flatten().tolist() == [20 * row + 1 for row in ([0, 5, 7] if mode.is_draft_extend_v2() else range(9))]


def test_attention_that_may() -> None:
    """In the only layer, and of the class whose forward ends with its last product."""
    model: Any = Model(LlamaAttention, once=True)
    assert attends_in_one_layer(model)
    assert not attends_in_one_layer(Model(type("Other", (LlamaAttention,), {}), once=True))
    model.model.layers *= 2
    assert not attends_in_one_layer(model)
    assert not attends_in_one_layer(SimpleNamespace())
