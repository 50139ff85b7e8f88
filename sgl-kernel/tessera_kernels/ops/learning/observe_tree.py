"""Learn on the device from what was accepted of draft trees: as `tessera_kernels.ops.learning.observe_acceptance`."""

from __future__ import annotations

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel, acceptance_torch, bins_torch
from tessera_kernels.ops.learning.observe_acceptance import follow_torch, promised_torch


def observe_tree(
    scores: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_index: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """Update ``counts`` and ``offsets`` of the model (in place) with the outcome of one step.

    Every node that was verified was tested, its whole path being verified too: column c is node c + 1, tested if
    ``c < verify_lens - 1``. It succeeded if it lies on the accepted path; what was promised is what the model expects.
    All count in the table's first row. The offset follows the gradient of the log-likelihood, sum(succeeded - expected)
    over the tested nodes, shrunk.

    One launch on a GPU, on the current stream, without a host sync; `observe_tree_torch` elsewhere.

    Args:
        scores: float32 ``[bs, N - 1]``, as `tessera_kernels.ops.verify.allocate_verify` had them. A request without a
            draft teaches nothing.
        requests: ``[bs]`` int32 or int64, each request's row of the pool, no two alike.
        verify_lens: int32 ``[bs]`` or longer, the root included.
        accept_index: int32 ``[bs, D]``, contiguous: the accepted nodes, ``request * N + node``, and -1.
        model: updated.
    """
    if scores.is_cuda:
        from tessera_kernels.triton.learning.observe_tree import observe_tree_triton

        observe_tree_triton(scores, requests, verify_lens, accept_index, model)
    else:
        observe_tree_torch(scores, requests, verify_lens, accept_index, model)


def observe_tree_torch(
    scores: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_index: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """The torch twin of the Triton kernel: same arguments, same result up to the rounding of the sigmoid."""
    bs, columns = scores.shape
    request = torch.arange(bs, device=scores.device)
    node = 1 + torch.arange(columns, device=scores.device)
    dense = request.unsqueeze(1) * (columns + 1) + node
    tested = (node < verify_lens[:bs].unsqueeze(1)) & ~(scores[:, :1] < 0)
    succeeded = tested & (dense.unsqueeze(2) == accept_index.unsqueeze(1)).any(2)
    places = bins_torch(model, scores).flatten()
    model.counts[0, 0].scatter_add_(0, places, tested.flatten().int())
    model.counts[1, 0].scatter_add_(0, places, succeeded.flatten().int())
    expected = acceptance_torch(model, scores, requests, paths=True)
    promised = torch.where(tested, promised_torch(expected), 0)
    model.counts[2, 0].scatter_add_(0, places, promised.flatten())
    gradient = torch.where(tested, succeeded.float() - expected, 0).sum(1)
    follow_torch(model, requests, gradient)
