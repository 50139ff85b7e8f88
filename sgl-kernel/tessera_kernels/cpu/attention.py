"""Attention of speculative decoding on the CPU, over a paged KV cache: draft steps and verifications.

SGLang's ``torch_native`` backend has neither. Shapes: ``B`` requests, ``Hq`` and ``Hkv`` heads (``Hkv`` divides
``Hq``), ``D`` the size of a head.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention


class PagedKV(NamedTuple):
    """Keys and values of a batch.

    Attributes:
        keys: ``[slots, Hkv, D]``.
        values: ``[slots, Hkv, D]``.
        req_to_token: ``[rows, columns]``, the KV slot of each position of each request.
        req_pool_indices: ``[B]``, each request's row of ``req_to_token``.
        seq_lens: ``[B]``, each request's accepted tokens, all cached.
    """

    keys: torch.Tensor
    values: torch.Tensor
    req_to_token: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor


class Step(NamedTuple):
    """One draft step: branches of a request, positions reserved for each branch, and the step's number from 0."""

    topk: int
    num_steps: int
    step: int


def verify_attention(
    query: torch.Tensor, kv: PagedKV, verify_lens: torch.Tensor, tree_mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Attend from the drafted tokens of each request to its accepted tokens and to their own ancestors.

    The keys and values of the drafted tokens are in the cache already, at the positions from ``seq_lens`` on.

    Args:
        query: ``[T, Hq, D]`` with ``T >= sum(verify_lens)``: the drafted tokens, by request.
        kv: keys and values.
        verify_lens: ``[B]``, drafted tokens of each request, the root included.
        tree_mask: bool, flat: for each request ``[n, n]``, True where the row's token attends to the column's. None for
            chains, in which each token attends to those before it.
        scaling: scale of the attention scores.

    Returns:
        ``[T, Hq, D]``; zeros for rows beyond the drafted tokens (padding).
    """
    output = torch.zeros_like(query)
    rows = kv.req_to_token[kv.req_pool_indices]
    token = cell = 0
    for request, (accepted, drafted) in enumerate(zip(kv.seq_lens.tolist(), verify_lens.tolist(), strict=True)):
        if tree_mask is None:
            seen = torch.ones(drafted, drafted, dtype=torch.bool).tril()
        else:
            seen = tree_mask[cell : cell + drafted * drafted].view(drafted, drafted)
        mask = torch.cat([torch.ones(drafted, accepted, dtype=torch.bool), seen], dim=1)
        own, slots = slice(token, token + drafted), rows[request, : accepted + drafted]
        output[own] = _attend(query[own], kv.keys[slots], kv.values[slots], mask, scaling)
        token += drafted
        cell += drafted * drafted
    return output


def draft_attention(query: torch.Tensor, kv: PagedKV, step: Step, scaling: float) -> torch.Tensor:
    """Attend from the token that each branch drafts in one step to the accepted tokens and to its own branch.

    Branch ``t`` of a request keeps its tokens at the ``num_steps`` positions from ``seq_lens + t * num_steps`` on
    (`tessera_kernels.cpu.kv_cache.assign_draft_cache_locs_contiguous_cpu`); the key of this step is there already.

    Args:
        query: ``[B * topk, Hq, D]``, the branches by request.
        kv: keys and values.
        step: the draft step.
        scaling: scale of the attention scores.

    Returns:
        ``[B * topk, Hq, D]``.
    """
    output = torch.empty_like(query)
    rows = kv.req_to_token[kv.req_pool_indices]
    for request, accepted in enumerate(kv.seq_lens.tolist()):
        for branch in range(step.topk):
            first = accepted + branch * step.num_steps
            slots = torch.cat([rows[request, :accepted], rows[request, first : first + step.step + 1]])
            own = slice(request * step.topk + branch, request * step.topk + branch + 1)
            output[own] = _attend(query[own], kv.keys[slots], kv.values[slots], None, scaling)
    return output


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Softmax attention of ``[n, Hq, D]`` over ``[m, Hkv, D]``; ``mask`` is ``[n, m]``, True where seen."""
    q, k, v = (tensor.to(query.dtype).transpose(0, 1).unsqueeze(0) for tensor in (query, keys, values))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)[0].transpose(0, 1)
