"""CPU implementations of the ``sgl_kernel`` operators of linear attention by the gated delta rule.

Shapes: ``B`` requests, ``T`` tokens of all of them, one request after the other; ``H`` heads of queries and keys of
size ``K``, ``HV`` heads of values of size ``V`` (``H`` divides ``HV``); a convolution over ``C`` channels and ``W``
tokens. Each request has a slot of two kinds of state, which are written in place: the last ``W - 1`` inputs of the
convolution, ``[slots, C, W - 1]``, and the sum of the delta rule, ``[slots, HV, V, K]``.
"""

import torch
from torch.nn.functional import conv1d, silu, softplus

_NORM_EPS = 1e-6


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    projected_states_qkvz: torch.Tensor,
    projected_states_ba: torch.Tensor,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take two projections apart, ``[T, 2 * (H * K + HV * V)]`` and ``[T, 2 * HV]``.

    Mirrors the Triton function ``fused_qkvzba_split_reshape_cat_contiguous``
    (``sglang.kernels.ops.attention.triton_gdn_fused_proj``).

    Returns:
        What is convolved, ``[T, 2 * H * K + HV * V]``, the output's gate, ``[T, HV, V]``, and ``b`` and ``a`` of
        `fused_gdn_gating_cpu`.
    """
    gate = num_v_heads * head_v_dim
    qkv, z = projected_states_qkvz.split([projected_states_qkvz.shape[1] - gate, gate], dim=1)
    b, a = projected_states_ba.chunk(2, dim=1)
    return qkv.clone(), z.reshape(-1, num_v_heads, head_v_dim).clone(), b.clone(), a.clone()


def causal_conv1d_fwd_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    cache_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    silu_activation: bool,
    pad_slot_id: int,
    is_vnni: bool,
) -> torch.Tensor:
    """Convolve each channel of each request's tokens, after those that its state has.

    Mirrors the Triton function ``causal_conv1d_fn`` (``sglang.kernels.ops.mamba.causal_conv1d_triton``).

    Args:
        x: ``[C, T]``.
        weight: ``[C, W]``.
        bias: ``[C]``.
        conv_states: the state, written.
        query_start_loc: ``[B + 1]``, where each request's tokens begin.
        cache_indices: ``[B]``, the slot of each request.
        has_initial_state: bool ``[B]``; where it is False a request begins, and its slot holds anything.
        silu_activation: whether SiLU follows.
        pad_slot_id: of no request; unused, as is the last argument, which is about the weight's layout.
        is_vnni: unused.

    Returns:
        ``[C, T]``.
    """
    out = torch.empty_like(x)
    starts, known = query_start_loc.tolist(), has_initial_state.tolist()
    for request, slot in enumerate(cache_indices.tolist()):
        own = slice(starts[request], starts[request + 1])
        before = conv_states[slot].to(x.dtype)
        window = torch.cat([before if known[request] else torch.zeros_like(before), x[:, own]], dim=1)
        out[:, own] = conv1d(window, weight.unsqueeze(1), bias, groups=len(weight))
        conv_states[slot] = window[:, -before.shape[1] :]
    return silu(out) if silu_activation else out


def causal_conv1d_update_cpu(
    x: torch.Tensor,
    conv_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    silu_activation: bool,
    cache_seqlens: torch.Tensor | None,
    conv_state_indices: torch.Tensor,
    pad_slot_id: int,
    is_vnni: bool,
) -> torch.Tensor:
    """Convolve one token of each request, ``[B, C]``: as `causal_conv1d_fwd_cpu`, of requests that have a state."""
    starts = torch.arange(len(x) + 1)
    known = torch.ones(len(x), dtype=torch.bool)
    slots = conv_state_indices
    rest = silu_activation, pad_slot_id, is_vnni
    return causal_conv1d_fwd_cpu(x.t(), weight, bias, conv_states, starts, slots, known, *rest).t()


def fused_gdn_gating_cpu(
    A_log: torch.Tensor,  # noqa: N803 - called by this name
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `chunk_gated_delta_rule_cpu` takes: the logarithm of the decay and the weight of the new value.

    Mirrors the Triton function ``fused_gdn_gating`` (``sglang.kernels.ops.attention.fla.fused_gdn_gating``).

    Args:
        A_log: ``[HV]``.
        a: ``[T, HV]``.
        b: ``[T, HV]``.
        dt_bias: ``[HV]``.

    Returns:
        Both float32 ``[1, T, HV]``.
    """
    decay = -A_log.float().exp() * softplus(a.float() + dt_bias.float())
    return decay.unsqueeze(0), b.float().sigmoid().unsqueeze(0)


def chunk_gated_delta_rule_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    output_final_state: bool,
    cu_seqlens: torch.Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule over each request's tokens, from its state on.

    Mirrors the Triton function ``chunk_gated_delta_rule`` (``sglang.kernels.ops.attention.fla.chunk``).

    Args:
        q: ``[1, T, H, K]``.
        k: ``[1, T, H, K]``.
        v: ``[1, T, HV, V]``.
        g: logarithm of the decay, ``[1, T, HV]``.
        beta: weight of the new value, ``[1, T, HV]``.
        initial_state: the state, written; a request that begins has zeros.
        output_final_state: unused: the state is written.
        cu_seqlens: ``[B + 1]``, where each request's tokens begin.
        head_first: False, as the shapes say.
        use_qk_l2norm_in_kernel: whether queries and keys are to be normalized.
        initial_state_indices: ``[B]``, the slot of each request.

    Returns:
        ``[1, T, HV, V]``, and the state.
    """
    queries, keys = (x[0].float().repeat_interleave(v.shape[2] // x.shape[2], dim=1) for x in (q, k))
    if use_qk_l2norm_in_kernel:
        queries, keys = (x * (x.square().sum(-1, keepdim=True) + _NORM_EPS).rsqrt() for x in (queries, keys))
    queries = queries * q.shape[-1] ** -0.5
    values, decay, weight = v[0].float(), g[0].float().exp(), beta[0].float()
    out = torch.empty_like(values)
    starts = cu_seqlens.tolist()
    for request, slot in enumerate(initial_state_indices.tolist()):
        state = initial_state[slot].float()
        for token in range(starts[request], starts[request + 1]):
            key = keys[token].unsqueeze(2)
            state = state * decay[token, :, None, None]
            new = (values[token] - (state @ key).squeeze(2)) * weight[token].unsqueeze(1)
            state = state + new.unsqueeze(2) @ key.transpose(1, 2)
            out[token] = (state @ queries[token].unsqueeze(2)).squeeze(2)
        initial_state[slot] = state.to(initial_state.dtype)
    return out.to(v.dtype).unsqueeze(0), initial_state


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: torch.Tensor,  # noqa: N803 - called by this name
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
    softplus_beta: float,
    softplus_threshold: float,
) -> torch.Tensor:
    """`fused_gdn_gating_cpu`, then `chunk_gated_delta_rule_cpu` of one token of each request; ``[1, B, HV, V]``."""
    decay, weight = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    state, slots = initial_state_source, initial_state_indices
    norm = use_qk_l2norm_in_kernel
    return chunk_gated_delta_rule_cpu(q, k, v, decay, weight, state, True, cu_seqlens, False, norm, slots)[0]
