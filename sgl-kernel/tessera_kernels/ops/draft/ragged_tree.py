"""The layout of draft trees of different sizes: links, positions and attention mask of the nodes that are kept."""

from typing import NamedTuple

import torch

from tessera_kernels.registry import op
from tessera_kernels.tree_links import ancestors, links, parents


class RaggedTree(NamedTuple):
    """Outputs of `ragged_tree`, written in place. ``N``: the most nodes of a request, the root included."""

    node_index: torch.Tensor
    """int64 ``[bs, N]``: the padded index ``request * N + node``; -1 for a node that is not kept."""
    first_child: torch.Tensor
    """int64 ``[bs, N]``, -1 where there is none."""
    next_sibling: torch.Tensor
    """int64 ``[bs, N]``, -1 where there is none."""
    positions: torch.Tensor
    """int64 ``[bs * N]``: sequence length plus depth; 0 for a node that is not kept."""
    mask: torch.Tensor
    """bool, flat: from ``mask_indptr[b]`` one row for each kept node, with the columns of the prefix first if these are
    included. Only the columns of the tree are written; the caller sets the prefix to true, as for SGLang's kernel."""


@op
def ragged_tree(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    verify_lens: torch.Tensor,
    mask_indptr: torch.Tensor,
    topk: int,
    depth: int,
    prefix_in_mask: bool,
    tree: RaggedTree,
) -> None:
    """Describe the kept part of every draft tree: links, positions and attention mask (in place).

    With ``verify_lens`` of N everywhere this is SGLang's ``build_tree_kernel_efficient``.

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel.

    Args:
        parent_list: int64 ``[bs, topk * (depth - 1) + 1]``, or ``[bs, 0]`` where depth is 1: for each group of
            ``topk`` candidates, the candidate that they continue.
        selected_index: int64 ``[bs, N - 1]``: first the candidates kept as nodes 1 to n-1, in any order; the rest of
            the row is ignored. A node whose parent is not kept has no links.
        seq_lens: ``[bs]`` int32 or int64, accepted length of each sequence.
        verify_lens: int32 ``[bs]`` or longer, nodes to keep, the root included: 1 to N.
        mask_indptr: int64 ``[bs]`` or longer, where each request's mask begins: the running sum of
            ``n * (seq_len + n)`` with the prefix, of ``n * n`` without.
        topk: candidates in a group.
        depth: the most steps from the root to a node.
        prefix_in_mask: whether rows of the mask begin with the prefix (SGLang's ``FULL_MASK``, else ``QLEN_ONLY``).
        tree: written.
    """
    bs, nodes = tree.node_index.shape
    node = torch.arange(nodes)
    lens = verify_lens[:bs].unsqueeze(1)
    live = node < lens
    parent = parents(parent_list, selected_index.where(live[:, 1:], 0), topk)
    parent = parent.where(live & (parent < lens), -1)
    linked = links(parent)
    for output, values in zip(tree, (torch.arange(bs * nodes).view(bs, nodes), *linked), strict=False):
        output.copy_(values.where(live, -1))
    attends, steps = ancestors(parent, depth)
    tree.positions.copy_((seq_lens.unsqueeze(1) + steps).where(live, 0).flatten())
    prefix = seq_lens.unsqueeze(1).unsqueeze(2) if prefix_in_mask else 0
    row_start = mask_indptr[:bs].unsqueeze(1).unsqueeze(2) + node.unsqueeze(1) * (prefix + lens.unsqueeze(2))
    both_live = live.unsqueeze(1) & live.unsqueeze(2)
    tree.mask[(row_start + prefix + node)[both_live]] = attends[both_live]
