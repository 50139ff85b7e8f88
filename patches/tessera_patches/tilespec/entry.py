"""Hooks on SGLang's speculative decoding: the worker, and verifications. Scheduler process."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tessera_patches.engine.batches import all_greedy
from tessera_patches.engine.options import resolved
from tessera_patches.tilespec.step import Step
from tessera_patches.tilespec.verify import accept, pack
from tessera_patches.tilespec.workers import worker_class


def adaptive_worker(original: Callable[..., type], algorithm: Any, server_args: Any) -> type:
    """AROUND ``SpeculativeAlgorithm.create_worker``: SGLang's worker class, extended by TileSpec."""
    return worker_class(original(algorithm, server_args), trees=resolved(server_args).speculative_eagle_topk > 1)


def prepare_verify(
    original: Callable[..., Any], verify_input: Any, req_to_token_pool: Any, batch: Any, target_worker: Any
) -> Any:
    """AROUND ``eagle_prepare_for_verify``: packs the chosen tokens."""
    step = Step.of(verify_input)
    if step is None or step.rows is None:
        return original(verify_input, req_to_token_pool, batch, target_worker)
    return pack.prepare(step, verify_input, req_to_token_pool, batch, target_worker)


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
    step = Step.of(verify_input)
    original = partial(original, **features)
    if step is not None and step.recent is not None:
        return _accept_chains(step, verify_input, batch, logits_output, grammar_mask)
    accepted = _accept_trees(original, step, verify_input, batch, logits_output, grammar_mask)
    if step is not None:
        step.accepted = accepted[2]
    return accepted


def commit_no_states(*_: Any, **__: Any) -> None:
    """REPLACEs ``commit_mamba_states_after_verify``: targets with such states are refused at start."""


def _accept_chains(step: Step, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any) -> Any:
    if step.rows is not None:
        pack.unpack(step, verify_input, batch, logits_output)
    accepted = accept.accept(step, verify_input, batch, logits_output, grammar_mask)
    if step.rows is not None and batch.return_logprob:
        pack.unpack_logits(step, verify_input, batch, logits_output)
    return accepted


def _accept_trees(
    original: Callable[..., Any],
    step: Step | None,
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any,
) -> Any:
    if step is not None and step.rows is not None:
        pack.unpack(step, verify_input, batch, logits_output)
        if all_greedy(batch) and not batch.return_logprob:
            return accept.accept_trees_greedily(step.qo_indptr, verify_input, batch, logits_output, grammar_mask)
        pack.unpack_logits(step, verify_input, batch, logits_output)
    with accept.with_sampling_applied(verify_input, batch, logits_output, grammar_mask) as mask_left:
        return original(verify_input, batch, logits_output, mask_left)
