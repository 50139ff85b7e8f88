"""What Triton kernels of SGLang's compute, in torch, for the CPU engine. Scheduler process."""

import torch
from torch.nn.functional import rms_norm, silu


def rms_norm_gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> torch.Tensor:
    """REPLACEs ``rms_norm_gated``: rows ``x``, normalized and weighted, times SiLU of ``g``, ``[n, V]``.

    Raises:
        NotImplementedError: a call with another activation, a bias or a residual, which no model has that needs this.
    """
    if activation not in ("swish", "silu") or bias is not None or residual is not None or prenorm:
        raise NotImplementedError("on a CPU, the gated norm has SiLU, no bias and no residual")
    return (rms_norm(x.float(), weight.shape, weight.float(), eps) * silu(g.float())).to(x.dtype)


def layernorm_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> torch.Tensor:
    """REPLACEs ``layernorm_fn``: as `rms_norm_gated`, with the gate ``z``.

    Raises:
        NotImplementedError: as there.
    """
    if z is None or group_size is not None or not norm_before_gate or not is_rms_norm:
        raise NotImplementedError("on a CPU, the gated norm has one group, and a gate after it")
    return rms_norm_gated(x, z, weight, bias, activation, eps=eps)


def fused_gate_sigmoid_mul_add(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    shared_output: torch.Tensor,
    final_hidden_states: torch.Tensor,
) -> None:
    """REPLACEs ``fused_gate_sigmoid_mul_add``: adds what shared experts gave, times each token's gate (in place).

    Args:
        hidden_states: ``[tokens, H]``, what the gate looks at.
        gate_weight: ``[H]``.
        shared_output: ``[tokens, H]``.
        final_hidden_states: ``[tokens, H]``, added to.
    """
    gates = (hidden_states.float() @ gate_weight.float()).sigmoid()
    final_hidden_states += (gates.unsqueeze(1) * shared_output).to(final_hidden_states.dtype)
