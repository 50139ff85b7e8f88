"""CPU implementations of the ``sgl_kernel`` operators that move KV-cache slots and fill the request-to-token table.

Shapes: ``B`` requests, ``P`` table columns (``pool_len``). The table ``req_to_token`` is int32 ``[rows, P]``; every
other index tensor is one-dimensional and int32 or int64. Ranges of a request are ``[start, end)`` columns of its row.
"""

import ctypes

import torch


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slots ``src_loc`` to slots ``tgt_loc`` in every K and V buffer; the two may overlap.

    Mirrors the Triton kernel ``copy_all_layer_kv_cache_tiled`` (``sglang.kernels.ops.kvcache.cache_move``).

    Args:
        data_ptrs: uint64 ``[buffers]``, the address of each buffer.
        strides: int64 ``[buffers]``, the bytes of one slot in each buffer.
        tgt_loc: ``[N]``, the slots to write.
        src_loc: ``[N]``, the slots to read.
    """
    if tgt_loc.numel() == 0:
        return
    slots = int(torch.maximum(tgt_loc.max(), src_loc.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        rows = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        # Indexing gathers all sources into new memory before the first target is written.
        rows[tgt_loc] = rows[src_loc]


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write consecutive pieces of ``out_cache_loc`` into the range of each request in ``req_to_token`` (in place).

    Mirrors the Triton kernel ``assign_req_to_token_pool`` (``sglang.srt.mem_cache.allocation``).

    Args:
        req_pool_indices: ``[B]``, the row of each request.
        req_to_token: the table, written.
        start_offset: ``[B]``.
        end_offset: ``[B]``.
        out_cache_loc: ``[sum(end - start)]`` or longer.
        pool_len: ``P``; the table knows its own width.
    """
    rows, columns = _range_cells(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the range of each request from ``req_to_token``, one after the other, into ``out_cache_loc`` (in place).

    Mirrors the Triton kernel ``assign_extend_cache_locs`` (``sglang.kernels.ops.speculative.cache_locs``).

    Args:
        req_pool_indices: ``[B]``, the row of each request.
        req_to_token: the table.
        start_offset: ``[B]``.
        end_offset: ``[B]``.
        out_cache_loc: ``[sum(end - start)]`` or longer; what is beyond the sum stays as it is.
        pool_len: ``P``; the table knows its own width.
    """
    rows, columns = _range_cells(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the ``topk * num_steps`` slots after each sequence into ``out_cache_loc`` (in place).

    Mirrors the Triton kernel ``assign_draft_cache_locs_contiguous`` (``sglang.kernels.ops.speculative.cache_locs``).

    Args:
        req_pool_indices: ``[B]``, the row of each request.
        req_to_token: the table.
        seq_lens: ``[B]``, the first column to read of each row.
        out_cache_loc: ``[B * topk * num_steps]``, written.
        pool_len: ``P``; the table knows its own width.
        topk: branches of the draft tree.
        num_steps: draft steps.
    """
    columns = seq_lens.unsqueeze(1) + torch.arange(topk * num_steps)
    out_cache_loc.copy_(req_to_token[req_pool_indices.unsqueeze(1), columns].flatten())


def _range_cells(
    req_pool_indices: torch.Tensor, start_offset: torch.Tensor, end_offset: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row and column of every table cell in the ranges of all requests, request by request."""
    lengths = end_offset - start_offset
    first = lengths.cumsum(0) - lengths
    columns = torch.arange(int(lengths.sum())) + (start_offset - first).repeat_interleave(lengths)
    return req_pool_indices.repeat_interleave(lengths), columns
