"""Registration of the CPU operators in the ``sgl_kernel`` namespace."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, infer_schema

from . import acceptance, delta_rule, draft_tree, gated_attention, kv_cache

Operator = Callable[..., Any]
_observer: Callable[[Operator], object] = id  # nobody asks

# Each operator with the arguments that it writes to. The function's name is the operator's.
_OPERATORS = (
    (kv_cache.copy_all_layer_kv_cache_cpu, ()),  # writes through addresses, not through a tensor
    (kv_cache.assign_req_to_token_pool_cpu, ("req_to_token",)),
    (kv_cache.assign_extend_cache_locs_cpu, ("out_cache_loc",)),
    (kv_cache.assign_draft_cache_locs_contiguous_cpu, ("out_cache_loc",)),
    (
        draft_tree.build_tree_kernel_efficient_cpu,
        ("tree_mask", "positions", "retrive_index", "retrive_next_token", "retrive_next_sibling"),
    ),
    (
        draft_tree.reconstruct_indices_from_tree_mask_cpu,
        ("positions", "retrive_index", "retrive_next_token", "retrive_next_sibling"),
    ),
    (acceptance.verify_tree_greedy_cpu, ("predicts", "accept_index", "accept_token_num")),
    (acceptance.fill_bonus_tokens_cpu, ("bonus_tokens",)),
    (acceptance.fill_accept_out_cache_loc_cpu, ("accept_out_cache_loc",)),
    (delta_rule.fused_qkvzba_split_reshape_cat_contiguous_cpu, ()),
    (delta_rule.causal_conv1d_fwd_cpu, ("conv_states",)),
    (delta_rule.causal_conv1d_update_cpu, ("conv_states",)),
    (delta_rule.fused_gdn_gating_cpu, ()),
    (delta_rule.chunk_gated_delta_rule_cpu, ("initial_state",)),
    (delta_rule.fused_sigmoid_gating_delta_rule_update_cpu, ("initial_state_source",)),
    (gated_attention.fused_sigmoid_mul_cpu, ("x",)),
    (gated_attention.fused_qk_gemma_rmsnorm_cpu, ()),
    (gated_attention.fused_qk_gemma_rmsnorm_with_gate_cpu, ()),
)


@functools.cache  # the operators live as long as the library object that the cache keeps
def register() -> Library:
    """Define every operator that ``sgl_kernel`` does not already have; a compiled one is left alone.

    Call it after ``sgl_kernel`` is imported: an operator that is defined twice fails the later definition.
    """
    library = Library("sgl_kernel", "FRAGMENT")
    for function, written in _OPERATORS:
        name = function.__name__
        if hasattr(torch.ops.sgl_kernel, name):
            continue
        library.define(name + infer_schema(function, mutates_args=written))
        library.impl(name, _counted(function), "CPU")
    return library


def on_call(act: Callable[[Operator], object]) -> None:
    """Call ``act`` with the function of each operator that is called, from now on."""
    global _observer  # noqa: PLW0603
    _observer = act


def _counted(function: Operator) -> Operator:
    @functools.wraps(function)
    def operator(*args: Any, **kwargs: Any) -> Any:
        _observer(function)
        return function(*args, **kwargs)

    return operator
