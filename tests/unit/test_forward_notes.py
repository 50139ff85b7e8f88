"""What hooks learn of a model in one forward: its embedding layer, and what was done to rows before the head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tessera.rows.forward_notes import ForwardNotes, distance, factor_of

IDS, H = [3, 1, 4], 8


class Head(nn.Module):
    """Stands for SGLang's logits processor."""

    def forward(self, ids: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Only the last row matters."""
        return hidden_states[-1] * len(ids)


class Adapted(nn.Module):
    """A layer around the embedding layer, as LoRA has it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Embedding(10, H)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Other embeddings than the inner layer's."""
        embeds: torch.Tensor = 2 * self.base(ids)
        return embeds


class Tiny(nn.Module):
    """Embeds ids and positions, and multiplies before the head."""

    def __init__(self, scale: float, tokens: nn.Module) -> None:
        super().__init__()
        self.tokens, self.positions, self.norm, self.head = tokens, nn.Embedding(10, H), nn.LayerNorm(H), Head()
        self.scale = scale

    def forward(self, ids: torch.Tensor, *, by_name: bool) -> torch.Tensor:
        """As models of SGLang do."""
        state = self.norm(self.tokens(ids) + self.positions(torch.arange(len(ids)))) * self.scale
        logits: torch.Tensor = self.head(ids, hidden_states=state) if by_name else self.head(ids, state)
        return logits


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("tokens", [nn.Embedding(10, H), Adapted()])
def test_embeddings_state_and_rows(tokens: nn.Module, *, by_name: bool) -> None:
    """The outermost layer that embeds the ids alone, the norm's output and what the head got; no hook stays."""
    model, ids = Tiny(0.25, tokens), torch.tensor(IDS)
    with ForwardNotes(model, Head, IDS, H) as notes:
        model(ids, by_name=by_name)
    assert notes.embedding is tokens
    assert notes.embeds is not None
    assert notes.state is not None
    assert notes.rows is not None
    assert torch.equal(notes.embeds, tokens(ids))
    assert torch.equal(notes.rows, notes.state * 0.25)
    assert factor_of(notes.rows, notes.state) == 0.25
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("divisor", [1.0, 9.0, 3.5, 1 / 3])
def test_a_factor_is_exact(dtype: torch.dtype, divisor: float) -> None:
    """Not an estimate that has other digits on another server."""
    state = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    factor = factor_of(state / divisor, state)
    assert factor is not None
    assert 1 / factor == pytest.approx(divisor, rel=1e-15)


def test_rows_that_are_no_multiple() -> None:
    """Other vectors, and none."""
    states = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(1))
    assert factor_of(states[0], states[1]) is None
    assert factor_of(states[0], torch.zeros(8, 64)) is None


def test_one_token_of_many_does_not_count() -> None:
    """A mixture may route it otherwise; what is wrong with embeddings shows in every token."""
    states = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    other = states.clone()
    other[3] *= -1
    assert distance(other, states) == 0
    assert distance(states * 1.5, states) == pytest.approx(0.5)
    assert distance(None, states) != distance(states, states)
