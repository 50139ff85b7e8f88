"""Hooks on SGLang's speculative decoding: the worker, and verifications. Scheduler process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    part = PartialVerify.of(verify_input)
    if part is None:
        return original(verify_input, req_to_token_pool, batch, target_worker)
    return pack.prepare(part, verify_input, req_to_token_pool, batch, target_worker)


def sample(
    original: Callable[..., Any],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    **features: Any,
) -> Any:
    """AROUND ``eagle_sample``: our acceptance for chains and greedy trees, SGLang's with padded rows for the others.

    What further arguments are for is refused at start.
    """
    accepted = _sample(partial(original, **features), verify_input, batch, logits_output, grammar_mask)
    tree = DraftTree.of(verify_input)
    if tree is not None:
        tree.accepted = accepted[2]
    return accepted


def commit_no_states(*_: Any, **__: Any) -> None:
    """REPLACEs ``commit_mamba_states_after_verify``: targets with such states are refused at start."""


def _sample(original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any) -> Any:
    part, chains = PartialVerify.of(verify_input), ChainVerify.of(verify_input)
    if part is not None:
        pack.unpack(part, verify_input, batch, logits_output)
    if chains is not None:
        accepted = accept.accept(chains, verify_input, batch, logits_output, grammar_mask)
        if part is not None and batch.return_logprob:
            pack.unpack_logits(part, verify_input, batch, logits_output)
        return accepted
    if part is not None:
        if batch.sampling_info.is_all_greedy and not batch.return_logprob:
            packed = part.plan.qo_indptr, verify_input, batch, logits_output, grammar_mask
            return accept.accept_trees_greedily(*packed)
        pack.unpack_logits(part, verify_input, batch, logits_output)
    with accept.with_sampling_applied(verify_input, batch, logits_output, grammar_mask) as mask_left:
        return original(verify_input, batch, logits_output, mask_left)
