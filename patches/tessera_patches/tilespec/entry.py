"""TileSpec's entry into SGLang: which worker drafts and verifies, and which tokens a verification takes. Scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera_patches.tilespec.draft.trees import DraftTree
from tessera_patches.tilespec.tree_worker import SizedTrees
from tessera_patches.tilespec.verify import accept, pack
from tessera_patches.tilespec.verify.accept import Chains
from tessera_patches.tilespec.verify.pack import Cut
from tessera_patches.tilespec.worker import SizedWorker, sized


def sized_worker(original: Callable[..., type], algorithm: Any, server_args: Any) -> type:
    """AROUND ``SpeculativeAlgorithm.create_worker``: SGLang's worker for the algorithm, with TileSpec on top."""
    mixin = SizedTrees if server_args.speculative_eagle_topk > 1 else SizedWorker
    return sized(original(algorithm, server_args), mixin)


def profile(result: None, scheduler: Any) -> None:
    """AFTER ``Scheduler.init_model_worker``: every graph exists and the KV pool has its size; nothing is served yet."""
    scheduler.draft_worker.profile()


def prepare_verify(
    original: Callable[..., Any], verify_input: Any, req_to_token_pool: Any, batch: Any, target_worker: Any
) -> Any:
    """AROUND ``eagle_prepare_for_verify``: the chosen tokens only, one request behind the other."""
    cut = Cut.of(verify_input)
    if cut is None:
        return original(verify_input, req_to_token_pool, batch, target_worker)
    return pack.prepare(cut, verify_input, req_to_token_pool, batch, target_worker)


def sample(
    original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None
) -> Any:
    """AROUND ``eagle_sample``: ours for chains; for trees mostly SGLang's, which sees full ones that may be cut."""
    accepted = _sample(original, verify_input, batch, logits_output, grammar_mask)
    tree = DraftTree.of(verify_input)
    if tree is not None:
        tree.accepted = accepted[2]
    return accepted


def commit_no_states(*_: Any) -> None:
    """In the place of ``commit_mamba_states_after_verify``: a target that has such states was refused at start."""


def _sample(original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any) -> Any:
    cut, chains = Cut.of(verify_input), Chains.of(verify_input)
    if cut is not None:
        pack.restore(cut, verify_input, batch, logits_output)
    if chains is not None:
        accepted = accept.accept(chains, verify_input, batch, logits_output, grammar_mask)
        if cut is not None and batch.return_logprob:
            pack.spread_logits(cut, verify_input, batch, logits_output)
        return accepted
    if cut is not None:
        if batch.sampling_info.is_all_greedy and not batch.return_logprob:
            packed = cut.plan.qo_indptr, verify_input, batch, logits_output, grammar_mask
            return accept.accept_trees_greedily(*packed)
        pack.spread_logits(cut, verify_input, batch, logits_output)
    with accept.cut_as_sampled(verify_input, batch, logits_output, grammar_mask) as mask_left:
        return original(verify_input, batch, logits_output, mask_left)
