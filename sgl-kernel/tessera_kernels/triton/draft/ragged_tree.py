"""The Triton kernel of `tessera_kernels.ops.draft.ragged_tree`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.draft.ragged_tree import RaggedTree
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

NODES_OF_ONE_WARP = 16
_NUMBERS = ["parent_stride", "selected_stride", "topk", "depth"]


@Launcher
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _tree_kernel(  # type: ignore[no-untyped-def]
    parent_list,
    selected_index,
    seq_lens,
    verify_lens,
    mask_indptr,
    index,
    first_child,
    next_sibling,
    positions,
    mask,
    parent_stride,
    selected_stride,
    topk,
    depth,
    PREFIX: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program b lays out the tree of request b: few nodes, so each is compared with each other one."""
    request = tl.program_id(0).to(tl.int64)
    length = tl.load(seq_lens + request).to(tl.int64)
    verify_len = tl.load(verify_lens + request)
    node = tl.arange(0, BLOCK)
    drafted = (node > 0) & (node < verify_len)
    candidate = tl.load(selected_index + request * selected_stride + node - 1, mask=drafted, other=-1)
    group = tl.where(drafted, candidate // topk, 0)
    continued = tl.load(parent_list + request * parent_stride + group, mask=group > 0, other=-2)
    same = (continued[:, None] == candidate[None, :]) & drafted[None, :]
    parent = tl.max(tl.where(same, node[None, :], -1), 1)
    parent = tl.where(drafted, tl.where(group == 0, 0, parent), -1)

    none = BLOCK
    child = tl.min(tl.where(parent[None, :] == node[:, None], node[None, :], none), 1)
    later = (parent[None, :] == parent[:, None]) & (parent >= 0)[:, None] & (node[None, :] > node[:, None])
    sibling = tl.min(tl.where(later, node[None, :], none), 1)

    # Walk from all nodes to the root at once; -1 after a node without a parent.
    attends = (node == 0)[None, :] | (node[:, None] < 0)
    steps = tl.zeros((BLOCK,), tl.int32)
    current = node
    for _ in range(depth):
        here = current[:, None] == node[None, :]
        attends = attends | here
        walking = current > 0
        steps += walking.to(tl.int32)
        current = tl.where(walking, tl.sum(tl.where(here, parent[None, :], 0), 1), current)

    live = node < verify_len
    inside = node < NODES
    padded_index = request * NODES + node
    tl.store(index + padded_index, tl.where(live, padded_index, -1), mask=inside)
    tl.store(first_child + padded_index, tl.where(live & (child < none), child, -1).to(tl.int64), mask=inside)
    tl.store(next_sibling + padded_index, tl.where(live & (sibling < none), sibling, -1).to(tl.int64), mask=inside)
    tl.store(positions + padded_index, tl.where(live, length + steps, 0), mask=inside)
    prefix = length if PREFIX else length * 0
    row = tl.load(mask_indptr + request).to(tl.int64) + node * (prefix + verify_len) + prefix
    tl.store(mask + row[:, None] + node[None, :], attends, mask=live[:, None] & live[None, :])


def ragged_tree_triton(
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
    """See `tessera_kernels.ops.draft.ragged_tree`. One launch."""
    bs, nodes = tree.node_index.shape
    _tree_kernel(
        (bs, 1, 1),
        (parent_list, selected_index, seq_lens, verify_lens, mask_indptr, *tree),
        (parent_list.stride(0), selected_index.stride(0), topk, depth),
        (prefix_in_mask, nodes, power_of_2(nodes)),
        num_warps=1 if nodes <= NODES_OF_ONE_WARP else 4,
    )
