"""Update the acceptance model with the outcome of a verification of trees: counts and offsets."""

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel, acceptance_torch, bins_torch
from tessera_kernels.ops.learning.observe_acceptance import prediction_units_torch, update_offsets_torch
from tessera_kernels.registry import op


@op
def observe_tree(
    scores: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_index: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """Update ``counts`` and ``offsets`` of the model (in place) with the outcome of one step.

    Every verified node is tested, because its whole path is verified too: column c is node c + 1, tested if
    ``c < verify_lens - 1``. It succeeded if it lies on the accepted path; its prediction is the expected acceptance of
    its path. All count in the table's first row. The offset takes a step along the gradient of the log-likelihood,
    sum(succeeded - expected) over the tested nodes, with weight decay.

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel up to the rounding of the sigmoid.

    Args:
        scores: float32 ``[bs, N - 1]``, as in `tessera_kernels.ops.verify.allocate_verify`. The offset of a
            request without a draft only decays.
        requests: ``[bs]`` int32 or int64, each request's row of the pool, all different.
        verify_lens: int32 ``[bs]`` or longer, the root included.
        accept_index: int32 ``[bs, D]``, contiguous: the accepted nodes, ``request * N + node``, and -1.
        model: updated.
    """
    bs, columns = scores.shape
    request = torch.arange(bs, device=scores.device)
    node = 1 + torch.arange(columns, device=scores.device)
    padded_index = request.unsqueeze(1) * (columns + 1) + node
    tested = (node < verify_lens[:bs].unsqueeze(1)) & ~(scores[:, :1] < 0)
    succeeded = tested & (padded_index.unsqueeze(2) == accept_index.unsqueeze(1)).any(2)
    bins = bins_torch(model, scores).flatten()
    model.counts[0, 0].scatter_add_(0, bins, tested.flatten().int())
    model.counts[1, 0].scatter_add_(0, bins, succeeded.flatten().int())
    expected = acceptance_torch(model, scores, requests, paths=True)
    predicted = torch.where(tested, prediction_units_torch(expected), 0)
    model.counts[2, 0].scatter_add_(0, bins, predicted.flatten())
    gradient = torch.where(tested, succeeded.float() - expected, 0).sum(1)
    update_offsets_torch(model, requests, gradient)
