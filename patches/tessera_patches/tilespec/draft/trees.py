"""Draft trees with nodes in the order of their path scores, which can be pruned to any number of nodes."""

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

tree_scores = ScopedValue[TreeScores]()
"""The scores of the trees that are being drafted, or captured."""


@dataclass(slots=True)
class DraftTree(Attachment):
    """The candidates of a batch's draft trees. SGLang's ``EagleVerifyInput`` has the links of the nodes only.

    Attributes:
        parents: int64 ``[bs, topk * (steps - 1) + 1]``, the parent candidate of each group of candidates.
        selected: int64 ``[bs, N - 1]``, the candidates that are nodes, the best path first.
        mask_indptr: int64 ``[bs]``, the begin of each request's mask; set by `prune_trees`.
        accepted: int32 ``[bs, steps + 1]``, the accepted nodes, ``request * N + node``, padded with -1; set after the
            verification.
    """

    parents: torch.Tensor
    selected: torch.Tensor
    mask_indptr: torch.Tensor | None = None
    accepted: torch.Tensor | None = None


def order_by_path_score(
    original: Callable[..., Any],
    score_list: list[torch.Tensor],
    token_list: list[torch.Tensor],
    parents_list: list[torch.Tensor],
    num_draft_token: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """AROUND ``organize_draft_results``: the same candidates, ordered by path score instead of index."""
    if tree_scores.value is None:
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = original(
            score_list, token_list, parents_list, num_draft_token
        )
        return found
    selected = tree_scores.value.order(score_list, num_draft_token - 1)
    tokens = torch.cat(token_list, dim=1).gather(1, selected)
    # The last step's candidates have no children.
    parents = torch.cat(parents_list[:-1], dim=1) if len(parents_list) > 1 else selected.new_empty(len(selected), 0)
    return parents, selected, tokens


def prune_trees(tree: DraftTree, verify_input: Any, seq_lens: torch.Tensor, plan: VerifyPlan, backend: Any) -> None:
    """Prune each tree to its first nodes: rewrites links, positions and mask of ``verify_input``.

    Args:
        tree: the candidates.
        verify_input: SGLang's ``EagleVerifyInput``.
        seq_lens: tokens before each tree, int64 ``[bs]``.
        plan: how many nodes of each tree are verified.
        backend: the attention backend. If it has a mask buffer, mask rows begin with the prefix, which is not read.
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
