"""Linear attention by the gated delta rule on the CPU engine: operators against plain loops, when they are on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d, normalize, silu, softplus

from tessera.cpu import calls_kernels
from tessera.server_options import ModelFacts
from tessera_kernels.cpu import delta_rule
from tessera_patches.cpu import kernels
from tessera_testing.server_options import server_options

STARTS = torch.tensor([0, 5, 6, 17])
SLOTS = torch.tensor([3, 0, 2], dtype=torch.int32)
HEADS, VALUE_HEADS, SIZE = 2, 4, 16


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    """Normal numbers, other ones for each shape and seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def split(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tokens of each request."""
    return list(tensor.split(STARTS.diff().tolist()))


def test_convolution_in_two_parts_is_that_of_the_whole() -> None:
    """The second part begins with the state of the first, and a token at a time goes on from there."""
    channels, width = 6, 4
    weight, states = random(channels, width), random(5, channels, width - 1, seed=9)
    inputs = random(channels, 17)
    known = torch.tensor([True, False, True])
    before = [states[slot].clone() * is_known for slot, is_known in zip(SLOTS, known, strict=True)]
    untouched = states[1].clone()
    rest = (STARTS, SLOTS, known, True, -1, True)
    found = delta_rule.causal_conv1d_fwd_cpu(inputs, weight, None, states, *rest)
    wholes = [torch.cat([one, own.T], 1) for one, own in zip(before, split(inputs.T), strict=True)]
    expected = [silu(conv1d(whole[None], weight[:, None], groups=channels))[0] for whole in wholes]
    torch.testing.assert_close(found, torch.cat(expected, 1))
    following = random(3, channels, seed=4)
    found = delta_rule.causal_conv1d_update_cpu(following, states, weight, None, True, None, SLOTS, -1, True)
    windows = [torch.cat([whole, one[:, None]], 1)[:, -width:] for whole, one in zip(wholes, following, strict=True)]
    torch.testing.assert_close(found, torch.stack([silu((window * weight).sum(1)) for window in windows]))
    torch.testing.assert_close(states[SLOTS.long()], torch.stack([window[:, 1:] for window in windows]))
    torch.testing.assert_close(states[1], untouched)


def test_the_rule_goes_on_from_the_state() -> None:
    """Several requests, one of them with a state; other slots stay. One more token of each is the same rule."""
    q, k = random(17, HEADS, SIZE), random(17, HEADS, SIZE, seed=2)
    v, a, b = random(17, VALUE_HEADS, SIZE), random(17, VALUE_HEADS), random(17, VALUE_HEADS, seed=3)
    log, bias = random(VALUE_HEADS), random(VALUE_HEADS, seed=5)
    states = random(5, VALUE_HEADS, SIZE, SIZE)
    states[[0, 3]] = 0
    expected_states, expected = states.clone(), torch.empty_like(v)
    decay, weight = (-log.exp() * softplus(a + bias)).exp(), b.sigmoid()
    for request, slot in enumerate(SLOTS.tolist()):
        for token in range(int(STARTS[request]), int(STARTS[request + 1])):
            for head in range(VALUE_HEADS):
                key = normalize(k[token, head // 2], dim=0)
                state = expected_states[slot, head] * decay[token, head]
                state += weight[token, head] * torch.outer(v[token, head] - state @ key, key)
                expected_states[slot, head] = state
                expected[token, head] = state @ normalize(q[token, head // 2], dim=0) / SIZE**0.5
    gates = delta_rule.fused_gdn_gating_cpu(log, a, b, bias)
    own = (q[None], k[None], v[None])
    found, _ = delta_rule.chunk_gated_delta_rule_cpu(*own, *gates, states, True, STARTS, False, True, SLOTS)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states, expected_states, rtol=1e-4, atol=1e-5)
    qkv = (q[None, :3], k[None, :3], v[None, :3])
    its_gates = (gates[0][:, :3], gates[1][:, :3])
    steps, again = torch.arange(4), states.clone()
    found = delta_rule.fused_sigmoid_gating_delta_rule_update_cpu(
        log, bias, *qkv, a[:3], b[:3], states, SLOTS, steps, True, 1.0, 20.0
    )
    same, _ = delta_rule.chunk_gated_delta_rule_cpu(*qkv, *its_gates, again, True, steps, False, True, SLOTS)
    torch.testing.assert_close(found, same)
    torch.testing.assert_close(states, again)


def test_the_gated_norm() -> None:
    """And a call that no model makes is refused."""
    rows, gate, weight = random(7, SIZE), random(7, SIZE, seed=2), random(SIZE)
    expected = rows / (rows.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight * silu(gate)
    torch.testing.assert_close(kernels.rms_norm_gated(rows, gate, weight, None, "silu"), expected)
    with pytest.raises(NotImplementedError, match="no bias"):
        kernels.rms_norm_gated(rows, gate, weight, random(SIZE), "silu")


def test_shared_experts_are_added_by_each_token_s_gate() -> None:
    """In place."""
    hidden, weight, shared, total = random(3, 8), random(8), random(3, 8, seed=2), random(3, 8, seed=3)
    expected = total + (hidden @ weight).sigmoid()[:, None] * shared
    kernels.fused_gate_sigmoid_mul_add(hidden, weight, shared, total)
    torch.testing.assert_close(total, expected)


def test_on_for_such_models_on_a_cpu() -> None:
    """With another model, or on a GPU, nothing of ours is installed."""

    def args(model: ModelFacts | None, device: str = "cpu") -> Any:
        return server_options(device=device, model=model)

    assert calls_kernels(args(ModelFacts(has_delta_rule=True)))
    assert calls_kernels(args(ModelFacts(shares_experts=True)))
    assert not calls_kernels(args(ModelFacts()))
    assert not calls_kernels(args(ModelFacts(has_delta_rule=True), "cuda"))
    assert not calls_kernels(args(None))
