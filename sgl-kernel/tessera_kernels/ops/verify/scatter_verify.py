"""Scatter the packed rows of a verification back to padded rows ``[bs, N]``."""

import torch

from tessera_kernels.registry import op


@op
def scatter_verify(packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int, padded: torch.Tensor, fill: float) -> None:
    """Copy each request's packed rows to its first padded rows, and set the others to ``fill`` (in place).

    Fill predictions with -1, which equals no token, and hidden states with 0: NaN would spread through the attention of
    the next draft although it is masked there.

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel.

    Args:
        packed: ``[rows]`` or ``[rows, H]``, contiguous, any dtype.
        qo_indptr: int32 ``[bs + 1]`` or longer, where each request begins in the packed rows, at most N each.
        bs: requests.
        padded: ``[bs * N]`` or ``[bs * N, H]``, contiguous, same dtype, written everywhere.
        fill: the value of rows that were not verified.
    """
    begin = qo_indptr[:bs].unsqueeze(1)
    within = torch.arange(padded.shape[0] // bs, device=packed.device)
    verified = (within < (qo_indptr[1 : bs + 1].unsqueeze(1) - begin)).flatten()
    source = (begin + within).flatten().where(verified, 0)
    padded.copy_(packed[source])
    padded[~verified] = fill
