"""Copy rows between two stores, in one launch: the one on the GPU, and the one in the host's memory."""

import torch

from tessera_kernels.registry import op


@op
def copy_rows(
    places: tuple[torch.Tensor, torch.Tensor],
    target: torch.Tensor,
    source: torch.Tensor,
) -> None:
    """Copy row ``places[1][i]`` of ``source`` to row ``places[0][i]`` of ``target``, on the current stream.

    Args:
        places: int64 ``[n]`` twice: in the target, without duplicates, and in the source. On the GPU if either is.
        target: ``[a, H]``, contiguous; on the GPU, or in pinned memory.
        source: ``[b, H]`` of the same dtype; likewise.
    """
    target.index_copy_(0, places[0], source.index_select(0, places[1]))
