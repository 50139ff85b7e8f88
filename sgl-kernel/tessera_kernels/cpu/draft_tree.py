"""CPU implementations of the ``sgl_kernel`` operators that lay out draft trees in speculative decoding.

Shapes: ``B`` requests, ``N`` nodes in the tree of each request (``draft_token_num``), of which node 0, the root, is the
last token already accepted. A node's global index is ``request * N + node``. ``retrive`` is their spelling.
"""

import torch

from tessera_kernels.tree_links import ancestors, links, parents

_FULL_MASK, _QLEN_ONLY = 0, 1


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Write attention mask, positions, first child and next sibling of every node of the draft trees (in place).

    Mirrors the CUDA operator ``build_tree_kernel_efficient`` and its Triton counterpart
    (``sglang.kernels.ops.speculative.spec_tree``).

    Args:
        parent_list: int64 ``[B, topk * (depth - 1) + 1]``, or ``[B, 0]`` where depth is 1: by group of ``topk``
            candidates, the candidate that they continue.
        selected_index: int64 ``[B, N - 1]``, the candidates chosen as nodes 1 to N-1, in any order.
        verified_seq_len: ``[B]``, the accepted length of each sequence.
        tree_mask: bool, written. Mode 1: ``[B * N * N]``. Mode 0: ``[sum(seq_len + N) * N]``, of which only the
            columns of the tree are written.
        positions: int64 ``[B * N]``, written.
        retrive_index: int64 ``[B, N]``, written: the global index of each node.
        retrive_next_token: int64 ``[B, N]``, written: the first child of each node, -1 where there is none.
        retrive_next_sibling: int64 ``[B, N]``, written: the next child of the same parent, or -1.
        topk: candidates in a group.
        depth: the most steps from the root to a node.
        draft_token_num: ``N``.
        tree_mask_mode: 0 (``FULL_MASK``) or 1 (``QLEN_ONLY``).

    Raises:
        NotImplementedError: another mask mode.
    """
    if tree_mask_mode not in (_FULL_MASK, _QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode} has no CPU version: expected 0 or 1")
    parent = parents(parent_list, selected_index, topk)
    retrive_index.copy_(torch.arange(retrive_index.numel()).view_as(retrive_index))
    first_child, next_sibling = links(parent)
    retrive_next_token.copy_(first_child)
    retrive_next_sibling.copy_(next_sibling)
    attends, steps = ancestors(parent, depth)
    positions.copy_((steps + verified_seq_len.unsqueeze(1)).flatten())
    cells = _mask_cells(verified_seq_len, draft_token_num, tree_mask_mode == _FULL_MASK)
    tree_mask[cells.flatten()] = attends.flatten()


def reconstruct_indices_from_tree_mask_cpu(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Derive positions, first child and next sibling of every node from the tree mask (in place).

    Mirrors the CUDA operator ``reconstruct_indices_from_tree_mask``, which n-gram drafts need.

    Args:
        tree_mask: bool ``[B * N * N]``: node of the row sees node of the column, itself and its ancestors.
        verified_seq_len: ``[B]``, the accepted length of each sequence.
        positions: int64 ``[B * N]``, written.
        retrive_index: int64 ``[B, N]``, written: the global index of each node.
        retrive_next_token: int64 ``[B, N]``, written: the first child of each node, -1 where there is none.
        retrive_next_sibling: int64 ``[B, N]``, written: the next child of the same parent, or -1.
        batch_size: ``B``.
        draft_token_num: ``N``.
    """
    before = tree_mask.view(batch_size, draft_token_num, draft_token_num).tril(-1)
    nodes = torch.arange(draft_token_num)
    # The parent is the ancestor that comes last; a node without ancestors, such as the root, has none.
    parent = torch.where(before, nodes, -1).amax(dim=2)
    retrive_index.copy_(torch.arange(retrive_index.numel()).view_as(retrive_index))
    first_child, next_sibling = links(parent)
    retrive_next_token.copy_(first_child)
    retrive_next_sibling.copy_(next_sibling)
    positions.copy_((before.sum(2) + verified_seq_len.unsqueeze(1)).flatten())


def _mask_cells(seq_lens: torch.Tensor, nodes: int, full: bool) -> torch.Tensor:
    """Return int64 ``[B, N, N]``: where in the flat mask the cell (row node, column node) of each request lies."""
    prefix = seq_lens.to(torch.int64) if full else torch.zeros_like(seq_lens, dtype=torch.int64)
    width = prefix + nodes
    row_starts = (nodes * (width.cumsum(0) - width)).unsqueeze(1) + torch.arange(nodes) * width.unsqueeze(1)
    return (row_starts + prefix.unsqueeze(1)).unsqueeze(2) + torch.arange(nodes)
