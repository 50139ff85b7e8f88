"""Parents, children, siblings and ancestors in draft trees. Shapes: ``B`` requests, ``N`` nodes in each tree."""

import torch


def parents(parent_list: torch.Tensor, selected_index: torch.Tensor, topk: int) -> torch.Tensor:
    """Return int64 ``[B, N]``: the parent of each node; -1 for the root and for a node whose parent was not chosen."""
    group = selected_index // topk
    root = torch.full_like(selected_index[:, :1], -1)
    if parent_list.shape[1] == 0:  # depth 1: every candidate continues the root
        return torch.cat([root, torch.zeros_like(group)], dim=1)
    candidate = parent_list.gather(1, group)
    same = candidate.unsqueeze(2) == selected_index.unsqueeze(1)
    chosen = torch.where(same.any(2), same.int().argmax(2) + 1, -1)
    return torch.cat([root, torch.where(group == 0, 0, chosen)], dim=1)


def links(parent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 ``[B, N]`` twice: first child and next sibling of each node, -1 where there is none."""
    nodes = torch.arange(parent.shape[1])
    child_of = parent.unsqueeze(1) == nodes.unsqueeze(1)
    same_parent = (parent.unsqueeze(1) == parent.unsqueeze(2)) & (parent != -1).unsqueeze(2)
    later_sibling = same_parent & (nodes > nodes.unsqueeze(1))
    return _first_true(child_of), _first_true(later_sibling)


def _first_true(mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask.any(-1), mask.int().argmax(-1), -1)


def ancestors(parent: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bool ``[B, N, N]``: itself, its ancestors and the root, by node; int64 ``[B, N]``: steps from the root."""
    batch, nodes = parent.shape
    attends = torch.zeros(batch, nodes, nodes, dtype=torch.bool)
    attends[:, :, 0] = True
    steps = torch.zeros_like(parent)
    current = torch.arange(nodes).expand(batch, nodes)
    for _ in range(depth):
        walking = current > 0
        # A walk that has ended marks the root, which is marked already.
        attends.scatter_(2, current.clamp(min=0).unsqueeze(2), True)
        steps += walking
        current = torch.where(walking, parent.gather(1, current.clamp(min=0)), current)
    return attends, steps
