"""CPU implementations of the ``sgl_kernel`` operators of attention whose output a gate scales (Qwen3.5).

Shapes: ``T`` tokens, ``H`` heads of size ``D``.
"""

import torch
from torch.nn.functional import rms_norm


def fused_sigmoid_mul_cpu(x: torch.Tensor, gate: torch.Tensor, inplace: bool = True) -> torch.Tensor:
    """Multiply ``x``, ``[T, H * D]``, by the sigmoid of the gate, ``[T, H * D]`` or ``[T, H, D]`` (in place).

    Mirrors the Triton function ``fused_sigmoid_mul`` (``sglang.kernels.ops.elementwise.elementwise``).

    Args:
        x: what attention gave.
        gate: its gate.
        inplace: True.

    Returns:
        A copy of it.
    """
    x.mul_(gate.reshape(x.shape).float().sigmoid())
    return x.clone()


def fused_qk_gemma_rmsnorm_cpu(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize each head of queries and keys, with a weight that is added to 1.

    Mirrors the Triton function ``fused_qk_gemma_rmsnorm`` (``sglang.srt.models.utils``).

    Args:
        q: ``[T, H * D]``.
        k: the same, of other heads.
        q_weight: ``[D]``.
        k_weight: ``[D]``.
        eps: added to the mean square.
        head_dim: ``D``.

    Returns:
        Both ``[T * H, D]``.
    """
    return _normed(q.reshape(-1, head_dim), q_weight, eps), _normed(k.reshape(-1, head_dim), k_weight, eps)


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same with ``q_gate``, ``[T, H * 2 * D]``, of which each head has its query, then its gate.

    Returns:
        Queries, keys and gates, ``[T * H, D]``.
    """
    q, gate = q_gate.reshape(-1, num_heads, 2, head_dim).unbind(2)
    normed = fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, head_dim)
    return *normed, gate.reshape(-1, head_dim).clone()


def _normed(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(rows.float(), weight.shape, 1 + weight.float(), eps).to(rows.dtype)
