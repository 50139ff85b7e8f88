"""CPU implementations of the ``sgl_kernel`` operators that accept draft trees in speculative decoding.

Shapes: ``B`` requests, ``N`` nodes in the tree of each request, ``D`` the longest chain that can be accepted, counting
node 0. A node's global index is ``request * N + node``. ``retrive`` is spelled as in the operators.
"""

import torch


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Follow the tree of each request as long as a child holds the token that the target predicts (in place).

    Mirrors the CUDA operator ``verify_tree_greedy`` and its Triton counterpart
    (``sglang.kernels.ops.speculative.spec_tree``).

    Args:
        predicts: int32, flat, at least ``B * N``: the target's token, written at the accepted nodes only.
        accept_index: int32 ``[B, D]``: the global indices of the accepted nodes, written from the left.
        accept_token_num: int32 ``[B]``, written: the accepted nodes without node 0.
        candidates: int64 ``[B, N]``, the token of each node.
        retrive_index: int64 ``[B, N]``, the global index of each node.
        retrive_next_token: int64 ``[B, N]``, the first child of each node, or -1.
        retrive_next_sibling: int64 ``[B, N]``, the next child of the same parent, or -1.
        target_predict: int64 ``[B, N]``, the target's next token after each node.
    """
    trees = (candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    tokens, indices, children, siblings = (tensor.tolist() for tensor in trees)
    targets = target_predict.flatten().tolist()
    for request in range(candidates.shape[0]):
        last, accepted = indices[request][0], [indices[request][0]]
        node = 0
        while len(accepted) < accept_index.shape[1]:
            node = children[request][node]
            while node != -1 and tokens[request][node] != targets[last]:
                node = siblings[request][node]
            if node == -1:
                break
            last = indices[request][node]
            accepted.append(last)
        accept_index[request, : len(accepted)] = torch.tensor(accepted, dtype=accept_index.dtype)
        accept_token_num[request] = len(accepted) - 1
        for index in accepted:
            predicts[index] = targets[index]


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Pick the last accepted token of each request (in place).

    Mirrors the Triton kernel ``fill_bonus_tokens`` (``sglang.kernels.ops.speculative.eagle``).

    Args:
        accept_tokens: int32, flat or ``[B, accept_stride]``.
        accept_lens: int32 ``[B]``, accepted tokens of each request, at least 1.
        bonus_tokens: int32 ``[B]``, written.
        accept_stride: tokens that each request has in ``accept_tokens``.
    """
    rows = torch.arange(accept_lens.numel()) * accept_stride
    bonus_tokens.copy_(accept_tokens.flatten()[rows + accept_lens - 1])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Collect the KV slots of the accepted nodes, without gaps, at the front of ``accept_out_cache_loc`` (in place).

    Mirrors the Triton kernel ``fill_accept_out_cache_loc`` (``sglang.kernels.ops.speculative.eagle``).

    Args:
        accept_index: int32 ``[B, D]``, indices into ``out_cache_loc``; -1 for nothing.
        out_cache_loc: int64 ``[B * N]``.
        accept_out_cache_loc: int64 ``[B * D]``, written; what is beyond the accepted nodes stays as it is.
    """
    accepted = accept_index[accept_index != -1]
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]
