"""What the target accepts of drafts, by our kernels where its logits, and a temperature, are all there is to it.

SGLang's acceptance takes logits of full drafts, and where it samples, probabilities of them: it gets them for all else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative import eagle_utils
from sglang.srt.utils.async_probe import sanitize_nan_logits

from tessera_kernels.accept_chains import AcceptedChains, ChainSampling, Observation, accept_chains
from tessera_kernels.scatter_verify import scatter_verify

_ATTRIBUTE = "tessera_chains"


@dataclass(slots=True)
class Chains:
    """Drafts without branches, that are verified in part or in full.

    Attributes:
        qo_indptr: where each one's verified rows begin, int32 ``[bs + 1]`` or longer.
        observation: what is to be learnt of them; None once it was, or where nothing is.
    """

    qo_indptr: torch.Tensor
    observation: Observation | None = None


def attach(verify_input: Any, chains: Chains) -> None:
    """Say of an ``EagleVerifyInput`` that its drafts are chains."""
    setattr(verify_input, _ATTRIBUTE, chains)


def chains_of(verify_input: Any) -> Chains | None:
    """The chains of a verification; None for trees, and where a graph is captured."""
    chains: Chains | None = getattr(verify_input, _ATTRIBUTE, None)
    return chains


def logits_decide(batch: Any, grammar_mask: Any) -> bool:
    """Nothing changes a logit and nobody asks for one."""
    sampling = batch.sampling_info
    changes = (sampling.acc_additive_penalties, sampling.acc_scaling_penalties, sampling.logit_bias, grammar_mask)
    return not batch.return_logprob and all(change is None for change in changes)


def is_plain(batch: Any) -> bool:
    """Greedy, or sampled by temperature alone."""
    sampling = batch.sampling_info
    return sampling.is_all_greedy or not (sampling.need_top_k_sampling or sampling.need_top_p_sampling)


def accept(chains: Chains, verify_input: Any, batch: Any, logits_output: Any) -> tuple[torch.Tensor, ...]:
    """What ``eagle_sample`` returns for chains, where `logits_decide` and the batch `is_plain`; and learn from it."""
    logits, logits_output.next_token_logits = logits_output.next_token_logits, None
    sanitize_nan_logits(logits, "tessera: logits of a verification")
    bs, width = len(batch.seq_lens), verify_input.draft_token_num
    tokens = verify_input.draft_token.reshape(bs, width)
    sampling = None if batch.sampling_info.is_all_greedy else _sampling(batch, tokens)
    accepted = AcceptedChains.create(bs, width, logits.device)
    accept_chains(logits, chains.qo_indptr, tokens, sampling, accepted, chains.observation)
    chains.observation = None
    return accepted.tokens, accepted.lens, accepted.places


def _sampling(batch: Any, tokens: torch.Tensor) -> ChainSampling:
    coins, last_coins = eagle_utils._verify_coins(
        sampling_info=batch.sampling_info,
        seq_lens=batch.seq_lens,
        draft_token_num=tokens.shape[1],
        candidates=tokens,
        device=tokens.device,
    )
    spec = get_spec()
    single, total = spec.speculative_accept_threshold_single, max(spec.speculative_accept_threshold_acc, 1e-9)
    return ChainSampling(batch.sampling_info.temperatures, coins, last_coins, single, total)


def accept_trees_greedily(
    qo_indptr: torch.Tensor, verify_input: Any, batch: Any, logits_output: Any
) -> tuple[torch.Tensor, ...]:
    """What ``eagle_sample`` returns for trees, where `logits_decide` and all requests are greedy.

    The arg-max of each packed row goes to its place. SGLang would take that of dense logits: at 64 requests, 8 nodes
    and a vocabulary of 128k those are 262 MB.
    """
    bs, width = len(batch.seq_lens), verify_input.draft_token_num
    logits, logits_output.next_token_logits = logits_output.next_token_logits, None
    sanitize_nan_logits(logits, "tessera: logits of a verification in part")
    predicted = dense(logits.argmax(-1), qo_indptr, bs, width, -1)  # no token is -1
    ints = {"dtype": torch.int32, "device": logits.device}
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
