"""Operators of attention with a gate on its output, and of what comes before the delta rule, against plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from tessera_kernels.cpu import delta_rule, gated_attention
from tessera_patches.cpu import kernels

TOKENS, HEADS, SIZE, EPS = 3, 4, 8, 1e-6


def random(*shape: int) -> torch.Tensor:
    """Normal numbers, other ones for each shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """By their root mean square."""
    return rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def test_the_gate_multiplies_in_place() -> None:
    """And the product is returned, for SGLang 0.5.17 takes what is returned."""
    x, gate = random(TOKENS, HEADS * SIZE), random(TOKENS, HEADS, SIZE)
    expected = x * gate.flatten(1).sigmoid()
    returned = gated_attention.fused_sigmoid_mul_cpu(x, gate)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(returned, expected)


def test_heads_are_normed_and_gates_are_not() -> None:
    """Each head has its query before its gate."""
    q_gate, k = random(TOKENS, HEADS * 2 * SIZE), random(TOKENS, 2 * SIZE)
    weights = random(SIZE), random(1, SIZE)[0]
    found = gated_attention.fused_qk_gemma_rmsnorm_with_gate_cpu(q_gate, k, *weights, EPS, SIZE, HEADS)
    q, gate = q_gate.view(TOKENS, HEADS, 2, SIZE).unbind(2)
    torch.testing.assert_close(found[0], normed(q.reshape(-1, SIZE), 1 + weights[0]))
    torch.testing.assert_close(found[1], normed(k.view(-1, SIZE), 1 + weights[1]))
    torch.testing.assert_close(found[2], gate.reshape(-1, SIZE))


def test_projections_are_taken_apart() -> None:
    """Queries, keys and values stay together; the output's gate, b and a are apart."""
    keys, values = 2, 4
    qkvz, ba = random(TOKENS, 2 * (keys + values) * SIZE), random(TOKENS, 2 * values)
    own = delta_rule.fused_qkvzba_split_reshape_cat_contiguous_cpu(qkvz, ba, keys, values, SIZE, SIZE)
    mixed, z, b, a = own
    torch.testing.assert_close(torch.cat([mixed, z.flatten(1)], 1), qkvz)
    torch.testing.assert_close(torch.cat([b, a], 1), ba)
    assert z.shape == (TOKENS, values, SIZE)


def test_the_norm_of_one_group_with_its_gate_after_it() -> None:
    """Other calls are refused."""
    x, z, weight = random(TOKENS, SIZE), random(1, TOKENS, SIZE)[0], random(SIZE)
    found = kernels.layernorm_fn(x, weight, None, z=z, is_rms_norm=True)
    torch.testing.assert_close(found, normed(x, weight) * silu(z))
    with pytest.raises(NotImplementedError, match="one group"):
        kernels.layernorm_fn(x, weight, None, z=z, is_rms_norm=True, norm_before_gate=False)
