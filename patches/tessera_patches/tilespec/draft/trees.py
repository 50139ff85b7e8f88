"""Draft trees: nodes in the order of their path scores, so that any number of the first ones can be verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tessera.tilespec.tree_scores import TreeScores
from tessera_kernels.ops.draft.ragged_tree import RaggedTree, ragged_tree
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_patches.core.attachment import Attachment
from tessera_patches.core.scoped import ScopedValue

ordering = ScopedValue[TreeScores]()
"""The scores of the draft that is being made in this process, or captured: its nodes are put in order, and noted."""


@dataclass(slots=True)
class DraftTree(Attachment):
    """What was drafted for a batch, beside SGLang's ``EagleVerifyInput``, which keeps the links only; not for chains.

    Attributes:
        parents: int64 ``[bs, topk * (steps - 1) + 1]``: by group of candidates, the one that they continue.
        selected: int64 ``[bs, N - 1]``: the candidates that are nodes, the best path first.
        mask_indptr: int64 ``[bs]``: where each request's mask begins; known where nodes are left out.
        accepted: int32 ``[bs, steps + 1]``: the accepted nodes, ``request * N + node``, and -1; known in the end.
    """

    parents: torch.Tensor
    selected: torch.Tensor
    mask_indptr: torch.Tensor | None = None
    accepted: torch.Tensor | None = None


def order_nodes(
    original: Callable[..., Any],
    score_list: list[torch.Tensor],
    token_list: list[torch.Tensor],
    parents_list: list[torch.Tensor],
    num_draft_token: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """AROUND ``organize_draft_results``: the same candidates, the best path first, and not by their index."""
    if ordering.value is None:
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = original(
            score_list, token_list, parents_list, num_draft_token
        )
        return found
    selected = ordering.value.order(score_list, num_draft_token - 1)
    tokens = torch.cat(token_list, dim=1).gather(1, selected)
    # Nothing continues the last step's candidates.
    parents = torch.cat(parents_list[:-1], dim=1) if len(parents_list) > 1 else selected.new_empty(len(selected), 0)
    return parents, selected, tokens


def lay_out(tree: DraftTree, verify_input: Any, seq_lens: torch.Tensor, plan: VerifyPlan, backend: Any) -> None:
    """Cut each tree to its first nodes: links, positions and mask of ``verify_input`` are written anew.

    Where the attention has a buffer for the mask, rows begin with the prefix, which its kernel does not look at.
    """
    bs, nodes = verify_input.retrieve_index.shape
    lens, buffer = plan.verify_lens[:bs], backend.verify_mask
    sizes = lens * lens if buffer is None else lens * (seq_lens + lens)
    tree.mask_indptr = sizes.cumsum(0) - sizes
    if buffer is None:
        verify_input.custom_mask = torch.empty(bs * nodes * nodes, dtype=torch.bool, device=lens.device)
    else:
        verify_input.custom_mask = buffer.buffer.view(torch.bool)
    links = verify_input.retrieve_index, verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    ragged_tree(
        tree.parents,
        tree.selected,
        seq_lens,
        lens,
        tree.mask_indptr,
        verify_input.topk,
        verify_input.spec_steps,
        buffer is not None,
        RaggedTree(*links, verify_input.positions, verify_input.custom_mask),
    )
