"""Draft trees that are verified in part."""

from typing import Any

import torch

from tessera_kernels.ops.draft.ragged_tree import RaggedTree, ragged_tree
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_patches.engine.attention import mask_buffer


def prune_trees(
    candidates: tuple[torch.Tensor, torch.Tensor],
    verify_input: Any,
    seq_lens: torch.Tensor,
    plan: VerifyPlan,
    backend: Any,
) -> torch.Tensor:
    """Prune each tree to its first nodes: rewrites links, positions and mask of ``verify_input``.

    Args:
        candidates: those of `tessera_patches.tilespec.step.Step`.
        verify_input: SGLang's ``EagleVerifyInput``.
        seq_lens: tokens before each tree, int64 ``[bs]``.
        plan: how many nodes of each tree are verified.
        backend: the attention backend. If it has a mask buffer, mask rows begin with the prefix, which is not read.

    Returns:
        the begin of each request's mask, int64 ``[bs]``.
    """
    bs, nodes = verify_input.retrieve_index.shape
    lens, buffer = plan.verify_lens[:bs], mask_buffer(backend)
    sizes = lens * lens if buffer is None else lens * (seq_lens + lens)
    mask_indptr: torch.Tensor = sizes.cumsum(0) - sizes
    if buffer is None:
        verify_input.custom_mask = torch.empty(bs * nodes * nodes, dtype=torch.bool, device=lens.device)
    else:
        verify_input.custom_mask = buffer.view(torch.bool)
    links = verify_input.retrieve_index, verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    ragged_tree(
        *candidates,
        seq_lens,
        lens,
        mask_indptr,
        verify_input.topk,
        verify_input.spec_steps,
        buffer is not None,
        RaggedTree(*links, verify_input.positions, verify_input.custom_mask),
    )
    return mask_indptr
