"""Acceptance of draft tokens, from the logits of the verified rows.

Chains, and trees of greedy requests, are accepted from packed rows. SGLang's acceptance needs padded logits, and
accepts sampled trees, and trees with log-probabilities.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from sglang.srt.speculative import eagle_utils
from sglang.srt.utils.async_probe import sanitize_nan_logits

from tessera.tilespec.penalties import RecentTokens
from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, accept_chains
from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits, sampling_cutoffs
from tessera_kernels.ops.verify.scatter_verify import scatter_verify
from tessera_patches.core.changes import TemporaryFields
from tessera_patches.engine.batches import all_greedy, batch_size, rows_of, seq_lens
from tessera_patches.engine.options import accept_thresholds
from tessera_patches.engine.ranks import broadcast, tp_size
from tessera_patches.tilespec.step import Step
from tessera_patches.tilespec.verify import penalties as tilespec_penalties


def accept(
    step: Step, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any
) -> tuple[torch.Tensor, ...]:
    """Accept chains, and count the outcome. Returns the same as ``eagle_sample``.

    Sampled tokens are broadcast from the first rank, as in SGLang: sums of probabilities may differ between GPUs in the
    last bit. Their outcome is counted by `tessera_patches.tilespec.worker.AdaptiveWorker`.
    """
    bs, width = batch_size(batch), verify_input.draft_token_num
    tokens = verify_input.draft_token.reshape(bs, width)
    logits = _adjusted_logits(
        logits_output, step.qo_indptr, batch, width, grammar_mask, _DraftTokens(tokens, step.recent)
    )
    greedy = all_greedy(batch)
    sampling = None if greedy else _sampling(batch, tokens, verify_input.draft_probs, logits, step)
    accepted = AcceptedChains.create(bs, width, logits.device)
    if sampling is None or tp_size() == 1:
        accept_chains(logits, step.qo_indptr, tokens, sampling, accepted, step.observation)
        step.observation = None
    else:
        accept_chains(logits, step.qo_indptr, tokens, sampling, accepted)
        for output in accepted:
            broadcast(output)
    if step.recent is not None and tilespec_penalties.of(batch.sampling_info) is not None:
        step.recent.update(rows_of(batch), accepted.tokens.view(bs, width), accepted.accept_lens)
    if batch.return_logprob:
        logits_output.next_token_logits = logits.float()
    return accepted.tokens, accepted.accept_lens, accepted.accept_index


class _DraftTokens(NamedTuple):
    """The tokens that penalties count: a chain's ``[bs, N]``, or the anchors of trees ``[bs, 1]``."""

    tokens: torch.Tensor
    recent: RecentTokens | None = None


def _adjusted_logits(
    logits_output: Any, qo_indptr: torch.Tensor, batch: Any, width: int, grammar_mask: Any, drafted: _DraftTokens
) -> torch.Tensor:
    """The logits of packed rows, with penalties, logit bias and grammar masks. Removes them from ``logits_output``."""
    logits: torch.Tensor = logits_output.next_token_logits
    logits_output.next_token_logits = None
    sanitize_nan_logits(logits, "tessera: logits of a verification")
    sampling = batch.sampling_info
    penalties, bias = tilespec_penalties.of(sampling), sampling.logit_bias
    if all(change is None for change in (penalties, bias, grammar_mask)):
        return logits
    logits = logits.float()  # sums would be rounded
    requests = _row_requests(logits, qo_indptr, batch_size(batch))
    within = torch.arange(len(logits), device=logits.device) - qo_indptr[requests]
    if penalties is not None:
        tokens, recent = drafted
        before = None if recent is None else recent.of(rows_of(batch))
        depths = within.clamp(max=tokens.shape[1] - 1)
        penalties.penalize_drafts(logits, requests, depths, seq_lens(batch), tokens, before)
    if bias is not None:
        logits.add_(bias[requests])
    if grammar_mask is not None:
        padded_rows = requests * width + within.clamp_(max=width - 1)  # rows of padding lie behind
        grammar_mask._replace(vocab_mask=grammar_mask.vocab_mask[padded_rows]).apply(logits)
    return logits


def _row_requests(packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int) -> torch.Tensor:
    """The request of each packed row, int64 ``[rows]``; rows of padding have the last one."""
    rows = torch.arange(len(packed), dtype=qo_indptr.dtype, device=packed.device)
    return torch.searchsorted(qo_indptr[1 : bs + 1], rows, right=True).clamp_(max=bs - 1)


def _sampling(
    batch: Any, tokens: torch.Tensor, proposals: torch.Tensor | None, logits: torch.Tensor, step: Step
) -> ChainSampling:
    sampling, width = batch.sampling_info, tokens.shape[1]
    cutoffs = _cutoffs(sampling, logits, step.qo_indptr, width) if _truncates(sampling) else None
    coins, last_coins = eagle_utils._verify_coins(
        sampling_info=sampling,
        seq_lens=seq_lens(batch),
        draft_token_num=width,
        candidates=tokens,
        device=tokens.device,
    )
    single, accumulated = accept_thresholds()
    return ChainSampling(
        sampling.temperatures,
        coins,
        last_coins,
        single,
        max(accumulated, 1e-9),
        cutoffs,
        proposals,
        step.draft_ids,
    )


def _truncates(sampling: Any) -> bool:
    return bool(sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling)


def _cutoffs(sampling: Any, logits: torch.Tensor, qo_indptr: torch.Tensor, width: int) -> torch.Tensor:
    """The least logit of each row that may be sampled, float32 ``[rows]``."""
    cutoffs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    limits = SamplingLimits(sampling.temperatures, sampling.top_ks, sampling.top_ps, sampling.min_ps)
    sampling_cutoffs(logits, qo_indptr, limits, width, cutoffs)
    return cutoffs


@contextlib.contextmanager
def with_sampling_applied(verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any) -> Iterator[Any]:
    """Apply penalties, top-k, top-p and min-p before SGLang accepts trees, in a ``with`` block.

    SGLang's acceptance takes top-p of the top-k tokens where its sampler takes it of all, ignores min-p, penalizes all
    nodes alike, and may need nvcc for its kernels. So in the block logits are -inf where they may not be sampled, and
    ``batch.sampling_info`` has temperatures only. Log-probabilities are of the logits before top-k, top-p and min-p.

    Args:
        verify_input: trees.
        batch: SGLang's ``ScheduleBatch``.
        logits_output: with ``next_token_logits`` ``[bs * N, V]``.
        grammar_mask: the grammar mask of the same rows, or None.

    Yields:
        the grammar mask that SGLang has to apply.
    """
    sampling = batch.sampling_info
    cuts = _truncates(sampling) and not all_greedy(batch)
    if not cuts and tilespec_penalties.of(sampling) is None:
        yield grammar_mask
        return
    bs, width = batch_size(batch), verify_input.draft_token_num
    device = logits_output.next_token_logits.device
    qo_indptr = torch.arange(0, (bs + 1) * width, width, dtype=torch.int32, device=device)
    logits = _adjusted_logits(logits_output, qo_indptr, batch, width, grammar_mask, _anchors(verify_input, batch))
    logits_output.next_token_logits = logits
    if cuts:
        unlikely = logits < _cutoffs(sampling, logits, qo_indptr, width).unsqueeze(1)
        logits_output.next_token_logits = logits.masked_fill(unlikely, -torch.inf)
    with TemporaryFields(with_sampling_applied, batch, sampling_info=_temperatures_only(sampling)):
        try:
            yield None
        finally:
            logits_output.next_token_logits = logits


def _temperatures_only(sampling: Any) -> Any:
    """A copy of a ``SamplingBatchInfo`` with temperatures only."""
    left = copy.copy(sampling)
    left.need_top_k_sampling = left.need_top_p_sampling = False
    left.logit_bias = None
    tilespec_penalties.clear(left)
    return left


def _anchors(verify_input: Any, batch: Any) -> _DraftTokens:
    """The anchors of trees. Trees of requests with penalties are reduced to them: penalties depend on a node's path."""
    tokens = verify_input.draft_token.reshape(batch_size(batch), verify_input.draft_token_num)
    penalties = tilespec_penalties.of(batch.sampling_info)
    if penalties is not None:
        links = verify_input.retrieve_next_token = verify_input.retrieve_next_token.clone()
        links[:, 0].masked_fill_(penalties.depend_on_drafts(seq_lens(batch)), -1)
    return _DraftTokens(tokens[:, :1])


def accept_trees_greedily(
    qo_indptr: torch.Tensor, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any
) -> tuple[torch.Tensor, ...]:
    """Accept trees of greedy requests without log-probabilities. Returns the same as ``eagle_sample``.

    Only the arg-max of each row is unpacked; padded logits of 64 requests, 8 nodes and a vocabulary of 128k have 262
    MB.
    """
    bs, width = batch_size(batch), verify_input.draft_token_num
    logits = _adjusted_logits(logits_output, qo_indptr, batch, width, grammar_mask, _anchors(verify_input, batch))
    predicted = unpack_rows(logits.argmax(-1), qo_indptr, bs, width, -1)  # no token is -1
    ints: dict[str, Any] = {"dtype": torch.int32, "device": logits.device}
    predict, accept_index, correct = eagle_utils.verify_tree_greedy_func(
        predicts=torch.zeros(bs * width, **ints),
        accept_index=torch.full((bs, verify_input.max_tree_depth), -1, **ints),
        accept_token_num=torch.empty(bs, **ints),
        candidates=verify_input.draft_token.reshape(bs, width),
        retrieve_index=verify_input.retrieve_index,
        retrieve_next_token=verify_input.retrieve_next_token,
        retrieve_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=predicted.reshape(bs, width),
        topk=verify_input.tree_topk,
    )
    return predict, correct + 1, accept_index


def unpack_rows(packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int, width: int, fill: int) -> torch.Tensor:
    """Padded rows ``[bs * width, ...]`` from packed rows; rows that were not verified are ``fill``."""
    spread = packed.new_empty((bs * width, *packed.shape[1:]))
    scatter_verify(packed, qo_indptr, bs, spread, fill)
    return spread
