"""Draft trees with nodes in the order of their path scores, so that they can be pruned to any number of nodes."""

from collections.abc import Callable
from typing import Any

import torch

from tessera.tilespec.tree_scores import TreeScores
from tessera_patches.core.scoped import ScopedValue

tree_scores = ScopedValue[TreeScores]()
"""The scores of the trees that are being drafted, or captured."""


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
