"""What the target accepts of drafts, from the logits of the rows that were verified.

Chains are accepted here. SGLang's acceptance takes logits of full drafts, and where it samples, probabilities of them:
it gets them for trees that are sampled, or whose log-probabilities are asked for.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative import eagle_utils
from sglang.srt.utils.async_probe import sanitize_nan_logits

from tessera.tilespec.penalties import RecentTokens
from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, Observation, accept_chains
from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits, sampling_cutoffs
from tessera_kernels.ops.verify.scatter_verify import scatter_verify
from tessera_patches.core.attachment import Attachment
from tessera_patches.core.changes import TemporaryFields
from tessera_patches.tilespec.verify import penalties as tilespec_penalties


@dataclass(slots=True)
class Chains(Attachment):
    """Drafts without branches, that are verified in part or in full.

    Attributes:
        qo_indptr: where each one's verified rows begin, int32 ``[bs + 1]`` or longer.
        observation: what is to be learnt of them; None once it was, or where nothing is.
        draft_ids: of `ChainSampling`, where drafts are samples.
        recent: what earlier verifications accepted, for requests with penalties.
    """

    qo_indptr: torch.Tensor
    recent: RecentTokens
    observation: Observation | None = None
    draft_ids: torch.Tensor | None = None


def accept(
    chains: Chains, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any
) -> tuple[torch.Tensor, ...]:
    """What ``eagle_sample`` returns for chains; and learn from it. Logits are kept for log-probabilities alone.

    Sums of probabilities may differ between GPUs in the last bit, so where tokens are sampled the first rank's are
    everybody's, as SGLang has it. What is learnt must wait for them.
    """
    bs, width = batch.seq_lens.shape[0], verify_input.draft_token_num
    tokens = verify_input.draft_token.reshape(bs, width)
    logits = _taken(logits_output, chains.qo_indptr, batch, width, grammar_mask, _Drafted(tokens, chains.recent))
    greedy = batch.sampling_info.is_all_greedy
    sampling = None if greedy else _sampling(batch, tokens, verify_input.draft_probs, logits, chains)
    accepted = AcceptedChains.create(bs, width, logits.device)
    if sampling is None or get_tp_group().world_size == 1:
        accept_chains(logits, chains.qo_indptr, tokens, sampling, accepted, chains.observation)
        chains.observation = None
    else:
        accept_chains(logits, chains.qo_indptr, tokens, sampling, accepted)
        for output in accepted:
            get_tp_group().broadcast(output, src=0)
    if tilespec_penalties.of(batch.sampling_info) is not None:
        chains.recent.update(batch.req_pool_indices, accepted.tokens.view(bs, width), accepted.accept_lens)
    if batch.return_logprob:
        logits_output.next_token_logits = logits.float()
    return accepted.tokens, accepted.accept_lens, accepted.accept_index


class _Drafted(NamedTuple):
    """What penalties count of a draft: tokens ``[bs, N]``, or of a tree the anchors ``[bs, 1]``."""

    tokens: torch.Tensor
    recent: RecentTokens | None = None


def _taken(
    logits_output: Any, qo_indptr: torch.Tensor, batch: Any, width: int, grammar_mask: Any, drafted: _Drafted
) -> torch.Tensor:
    """The logits of packed rows, with what requests ask to be added and left out; nobody else sees them."""
    logits: torch.Tensor = logits_output.next_token_logits
    logits_output.next_token_logits = None
    sanitize_nan_logits(logits, "tessera: logits of a verification")
    sampling = batch.sampling_info
    penalties, bias = tilespec_penalties.of(sampling), sampling.logit_bias
    if all(change is None for change in (penalties, bias, grammar_mask)):
        return logits
    logits = logits.float()  # what is added would be rounded
    requests = _requests_of(logits, qo_indptr, len(batch.seq_lens))
    within = torch.arange(len(logits), device=logits.device) - qo_indptr[requests]
    if penalties is not None:
        tokens, recent = drafted
        before = None if recent is None else recent.of(batch.req_pool_indices)
        depths = within.clamp(max=tokens.shape[1] - 1)
        penalties.penalize_drafts(logits, requests, depths, batch.seq_lens, tokens, before)
    if bias is not None:
        logits.add_(bias[requests])
    if grammar_mask is not None:
        dense_rows = requests * width + within.clamp_(max=width - 1)  # rows of padding lie behind
        grammar_mask._replace(vocab_mask=grammar_mask.vocab_mask[dense_rows]).apply(logits)
    return logits


def _requests_of(packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int) -> torch.Tensor:
    """Whose each packed row is, int64 ``[rows]``; those of padding are the last request's."""
    rows = torch.arange(len(packed), dtype=qo_indptr.dtype, device=packed.device)
    return torch.searchsorted(qo_indptr[1 : bs + 1], rows, right=True).clamp_(max=bs - 1)


def _sampling(
    batch: Any, tokens: torch.Tensor, proposals: torch.Tensor | None, logits: torch.Tensor, chains: Chains
) -> ChainSampling:
    asked, width = batch.sampling_info, tokens.shape[1]
    cutoffs = _cutoffs(asked, logits, chains.qo_indptr, width) if _truncated(asked) else None
    coins, last_coins = eagle_utils._verify_coins(
        sampling_info=asked,
        seq_lens=batch.seq_lens,
        draft_token_num=width,
        candidates=tokens,
        device=tokens.device,
    )
    spec = get_spec()
    return ChainSampling(
        asked.temperatures,
        coins,
        last_coins,
        spec.speculative_accept_threshold_single,
        max(spec.speculative_accept_threshold_acc, 1e-9),
        cutoffs,
        proposals,
        chains.draft_ids,
    )


def _truncated(asked: Any) -> bool:
    return bool(asked.need_top_k_sampling or asked.need_top_p_sampling or asked.need_min_p_sampling)


def _cutoffs(asked: Any, logits: torch.Tensor, qo_indptr: torch.Tensor, width: int) -> torch.Tensor:
    """The least logit of each row that is sampled."""
    cutoffs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    limits = SamplingLimits(asked.temperatures, asked.top_ks, asked.top_ps, asked.min_ps)
    sampling_cutoffs(logits, qo_indptr, limits, width, cutoffs)
    return cutoffs


@contextlib.contextmanager
def cut_as_sampled(verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any) -> Iterator[Any]:
    """Have SGLang's acceptance of trees penalize tokens, and cut to top-k, top-p and min-p, as its sampler does.

    By itself it takes p of the k likeliest tokens, and the sampler p of all; it does not look at min-p; it penalizes
    all nodes alike; and its kernels may have to be compiled by nvcc. So it gets logits with minus infinity for what is
    cut off, and nothing else to do to them. Those of which log-probabilities are taken are as they were.

    Args:
        verify_input: trees, with ``logits_output.next_token_logits`` ``[bs * N, V]``.
        batch: has another ``sampling_info`` meanwhile.
        logits_output: has other logits meanwhile.
        grammar_mask: of the same rows, or None.

    Yields:
        the grammar mask that is still to be applied.
    """
    asked = batch.sampling_info
    cuts = _truncated(asked) and not asked.is_all_greedy
    if not cuts and tilespec_penalties.of(asked) is None:
        yield grammar_mask
        return
    bs, width = len(batch.seq_lens), verify_input.draft_token_num
    device = logits_output.next_token_logits.device
    qo_indptr = torch.arange(0, (bs + 1) * width, width, dtype=torch.int32, device=device)
    logits = _taken(logits_output, qo_indptr, batch, width, grammar_mask, _anchors(verify_input, batch))
    logits_output.next_token_logits = logits
    if cuts:
        unlikely = logits < _cutoffs(asked, logits, qo_indptr, width).unsqueeze(1)
        logits_output.next_token_logits = logits.masked_fill(unlikely, -torch.inf)
    with TemporaryFields(batch, sampling_info=_done(asked)):
        try:
            yield None
        finally:
            logits_output.next_token_logits = logits


def _done(asked: Any) -> Any:
    """A ``SamplingBatchInfo`` of which only temperatures are left to be applied."""
    left = copy.copy(asked)
    left.need_top_k_sampling = left.need_top_p_sampling = False
    left.logit_bias = None
    tilespec_penalties.forget(left)
    return left


def _anchors(verify_input: Any, batch: Any) -> _Drafted:
    """Of trees; those of requests with penalties lose all nodes but the anchor, whose penalties are known.

    A node's would depend on its path.
    """
    tokens = verify_input.draft_token.reshape(len(batch.seq_lens), verify_input.draft_token_num)
    penalties = tilespec_penalties.of(batch.sampling_info)
    if penalties is not None:
        links = verify_input.retrieve_next_token = verify_input.retrieve_next_token.clone()
        links[:, 0].masked_fill_(penalties.depend_on_drafts(batch.seq_lens), -1)
    return _Drafted(tokens[:, :1])


def accept_trees_greedily(
    qo_indptr: torch.Tensor, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any
) -> tuple[torch.Tensor, ...]:
    """What ``eagle_sample`` returns for trees where all requests are greedy and nobody wants log-probabilities.

    The arg-max of each packed row goes to its place. SGLang would take that of dense logits: at 64 requests, 8 nodes
    and a vocabulary of 128k those are 262 MB.
    """
    bs, width = len(batch.seq_lens), verify_input.draft_token_num
    logits = _taken(logits_output, qo_indptr, batch, width, grammar_mask, _anchors(verify_input, batch))
    predicted = dense(logits.argmax(-1), qo_indptr, bs, width, -1)  # no token is -1
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


def dense(packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int, width: int, fill: int) -> torch.Tensor:
    """Rows ``[bs * width, ...]`` from those that were verified; the others have ``fill``."""
    spread = packed.new_empty((bs * width, *packed.shape[1:]))
    scatter_verify(packed, qo_indptr, bs, spread, fill)
    return spread
