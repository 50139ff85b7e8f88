"""From the packed rows of a verification back to dense rows ``[bs, N]``."""

from __future__ import annotations

import torch


def scatter_verify(packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int, dense: torch.Tensor, fill: float) -> None:
    """Put each request's packed rows in front of its dense rows (in place) and ``fill`` behind them.

    Fill predictions with -1, which no token equals, and hidden states with 0: what is not a number would spread through
    the attention of the next draft although it is masked there.

    One launch on a GPU, on the current stream, without a host sync; `scatter_verify_torch` elsewhere.

    Args:
        packed: ``[rows]`` or ``[rows, H]``, contiguous, any dtype.
        qo_indptr: int32 ``[bs + 1]`` or longer, where each request begins in the packed rows; none has more than N.
        bs: requests.
        dense: ``[bs * N]`` or ``[bs * N, H]``, contiguous, same dtype, written everywhere.
        fill: the value of rows that were not verified.
    """
    if packed.is_cuda:
        from tessera_kernels.triton.verify.scatter_verify import scatter_verify_triton

        scatter_verify_triton(packed, qo_indptr, bs, dense, fill)
    else:
        scatter_verify_torch(packed, qo_indptr, bs, dense, fill)


def scatter_verify_torch(
    packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int, dense: torch.Tensor, fill: float
) -> None:
    """The torch twin of the Triton kernel: same arguments, same result."""
    begin = qo_indptr[:bs].unsqueeze(1)
    within = torch.arange(dense.shape[0] // bs, device=packed.device)
    verified = (within < (qo_indptr[1 : bs + 1].unsqueeze(1) - begin)).flatten()
    source = (begin + within).flatten().where(verified, 0)
    dense.copy_(packed[source])
    dense[~verified] = fill
