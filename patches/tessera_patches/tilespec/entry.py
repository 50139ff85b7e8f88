"""Hooks on SGLang's speculative decoding: the worker, and verifications. Scheduler process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera_patches.engine.options import resolved
from tessera_patches.tilespec.draft.trees import DraftTree
from tessera_patches.tilespec.tree_worker import AdaptiveTreeWorker
from tessera_patches.tilespec.verify import accept, pack
from tessera_patches.tilespec.verify.accept import ChainVerify
from tessera_patches.tilespec.verify.pack import PartialVerify
from tessera_patches.tilespec.worker import AdaptiveWorker, adaptive_class


def adaptive_worker(original: Callable[..., type], algorithm: Any, server_args: Any) -> type:
    """AROUND ``SpeculativeAlgorithm.create_worker``: SGLang's worker class, extended by TileSpec."""
    mixin = AdaptiveTreeWorker if resolved(server_args).speculative_eagle_topk > 1 else AdaptiveWorker
    return adaptive_class(original(algorithm, server_args), mixin)


def profile(result: None, scheduler: Any) -> None:
    """AFTER ``Scheduler.init_model_worker``, when graphs and KV pool exist, and nothing is served yet."""
    scheduler.draft_worker.profile()


def prepare_verify(
    original: Callable[..., Any], verify_input: Any, req_to_token_pool: Any, batch: Any, target_worker: Any
) -> Any:
    """AROUND ``eagle_prepare_for_verify``: packs the chosen tokens."""
    partial = PartialVerify.of(verify_input)
    if partial is None:
        return original(verify_input, req_to_token_pool, batch, target_worker)
    return pack.prepare(partial, verify_input, req_to_token_pool, batch, target_worker)


def sample(
    original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None
) -> Any:
    """AROUND ``eagle_sample``: our acceptance for chains and greedy trees, SGLang's with padded rows for the others."""
    accepted = _sample(original, verify_input, batch, logits_output, grammar_mask)
    tree = DraftTree.of(verify_input)
    if tree is not None:
        tree.accepted = accepted[2]
    return accepted


def commit_no_states(*_: Any) -> None:
    """REPLACEs ``commit_mamba_states_after_verify``: targets with such states are refused at start."""


def _sample(original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any) -> Any:
    partial, chains = PartialVerify.of(verify_input), ChainVerify.of(verify_input)
    if partial is not None:
        pack.unpack(partial, verify_input, batch, logits_output)
    if chains is not None:
        accepted = accept.accept(chains, verify_input, batch, logits_output, grammar_mask)
        if partial is not None and batch.return_logprob:
            pack.unpack_logits(partial, verify_input, batch, logits_output)
        return accepted
    if partial is not None:
        if batch.sampling_info.is_all_greedy and not batch.return_logprob:
            packed = partial.plan.qo_indptr, verify_input, batch, logits_output, grammar_mask
            return accept.accept_trees_greedily(*packed)
        pack.unpack_logits(partial, verify_input, batch, logits_output)
    with accept.with_sampling_applied(verify_input, batch, logits_output, grammar_mask) as mask_left:
        return original(verify_input, batch, logits_output, mask_left)
