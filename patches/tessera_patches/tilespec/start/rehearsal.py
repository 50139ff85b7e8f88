"""Decode steps that nobody asked for, through the worker's own entry, before anything is served.

They compile and load every kernel of a step, show at start what would otherwise fail in the middle of a request, and
say what whole steps take over contexts of several lengths. Their requests own rows and KV slots of the pools, which
hold nothing yet; what they write is overwritten before it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.allocation import assign_req_to_token_pool_func
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec

from tessera.tilespec.policy import Choice
from tessera_patches.tilespec import relay as tilespec_relay
from tessera_patches.tilespec.draft.proposals import certain
from tessera_patches.tilespec.draft.vocabulary import vocabulary

_ABSENT = ("lora_id", "grammar", "token_type_ids")
"""What SGLang looks for in each request of a decode step, and these do not have."""
_WARM_UPS = 2
_STEPS = 5


class Asks(Enum):
    """What requests ask for: each takes other kernels."""

    GREEDY = "temperature 0"
    TEMPERATURE = "by temperature alone"
    TRUNCATED = "by temperature, top-k and top-p"
    LOGPROBS = "by temperature, with log-probabilities"


class FixedChoice:
    """Stands where the decider will: every step gets the same choice, and nothing is learnt."""

    def __init__(self) -> None:
        self._choice: Choice | None = None

    def fix(self, choice: Choice) -> None:
        """Choose this from now on."""
        self._choice = choice

    def choose(self, *_: int) -> Choice | None:
        """See `tessera.tilespec.decider.Decider.choose`."""
        return self._choice

    def on_verify(self, *_: Any) -> None:
        """See `tessera.tilespec.decider.Decider.on_verify`."""


class Rehearsal:
    """A batch of requests with a context of one length.

    Args:
        worker: a `tessera_patches.tilespec.worker.SizedWorker`; its decider is replaced.
        bs: requests, at most those that the pool holds.
        context: tokens of each request in the KV cache.
        asks: what they ask for.
    """

    def __init__(self, worker: Any, bs: int, context: int, asks: Asks) -> None:
        self._worker, self._bs = worker, bs
        self._decider = FixedChoice()
        worker.decide_by(self._decider)
        self._fields = _fields(worker, bs, context, asks)
        self._next = _first_draft(worker, bs)
        tilespec_relay.rehearse(self._next)

    def step(self, steps: int, tier: int | None = None, tokens: int | None = None) -> None:
        """Run one: so many draft steps, then a verification of all tokens, or of ``tokens`` in the graph of ``tier``.

        The next one begins at the same length with what this one drafted.
        """
        full = self._bs * (steps + 1)
        choice = Choice(steps, tier, min(tokens or tier or full, full), 0.0, 1.0, 1.0, 0)
        self._decider.fix(choice)
        batch = ScheduleBatch(**self._fields, forward_mode=ForwardMode.DECODE, spec_info=self._next)
        result = self._worker.forward_batch_generation(batch)
        if result.accept_lens.is_cuda and not result.can_run_cuda_graph:
            raise RuntimeError(f"--tile-spec: a verification of {choice} ran without its CUDA graph")
        self._next = result.next_draft_input
        # As SGLang's relay from step to step hands it on; without drafts it is the whole verification.
        self._next.bonus_tokens = self._next.bonus_tokens.long()

    def seconds(self, steps: int) -> float:
        """What a step of all tokens takes, on a CUDA device, from start to start."""
        for _ in range(_WARM_UPS):
            self.step(steps)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_STEPS + 1)]
        events[0].record()
        for event in events[1:]:
            self.step(steps)
            event.record()
        torch.cuda.synchronize()
        return float(median(a.elapsed_time(b) for a, b in pairwise(events))) / 1e3


@contextmanager
def as_served(worker: Any) -> Iterator[None]:
    """On the stream of the scheduler's forwards: what torch allocates for them now need not be while requests wait."""
    module, stream = torch.get_device_module(worker.device), worker.target_worker.model_runner.forward_stream
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        yield
    module.current_stream().wait_stream(stream)


@contextmanager
def rehearsal(worker: Any, bs: int, context: int, asks: Asks = Asks.GREEDY) -> Iterator[Rehearsal]:
    """A rehearsal after which the request pool is as it was, and of which nothing was learnt."""
    table = worker.req_to_token_pool.req_to_token
    rows = table[1 : bs + 1]
    before = rows.clone()
    slots = _spread(worker, bs, context)
    rows[:, : slots.shape[1]] = slots
    try:
        with torch.no_grad():
            yield Rehearsal(worker, bs, context, asks)
    finally:
        rows.copy_(before)
        worker._scores.reset()
        worker.war_fastpath_runner.war_fastpath_read_done_event = None  # the scheduler would wait for it


def assign_no_slots(worker: Any, bs: int) -> None:
    """SGLang's kernel that gives a batch its next KV slots, which the scheduler launches before a step: given none.

    Triton compiles it for each power of two of the batch, and again where the slots do not begin at 16 bytes: they are
    a part of the list of free ones.
    """
    table = worker.req_to_token_pool.req_to_token
    requests = torch.arange(1, bs + 1, device=table.device)
    nowhere = torch.zeros(bs, dtype=torch.int32, device=table.device)
    slots = torch.zeros(2, dtype=torch.int64, device=table.device)
    for free in (slots, slots[1:]):
        assign_req_to_token_pool_func(requests, table, nowhere, nowhere, free, bs)


def longest(worker: Any, bs: int) -> int:
    """The longest context that ``bs`` requests can have with KV slots of their own."""
    room: int = worker.token_to_kv_pool_allocator.size // bs - worker.page_size
    table: int = worker.req_to_token_pool.req_to_token.shape[1]
    positions: int = worker.target_worker.model_runner.model_config.context_len
    return max(min(room, table, positions) - _ahead(worker), 1)


def _ahead(worker: Any) -> int:
    """KV slots behind the context that SGLang reserves for a step."""
    return int(get_alloc_reserve_per_decode(worker.server_args))


def _spread(worker: Any, bs: int, context: int) -> torch.Tensor:
    """KV slots ``[bs, context + ...]`` in random pages, none twice where the pool has enough. Slot 0 is padding."""
    page, length = worker.page_size, context + _ahead(worker)
    each = -(-length // page)
    pages = int(worker.token_to_kv_pool_allocator.size) // page - 1
    table = worker.req_to_token_pool.req_to_token
    places = torch.randperm(pages, device=table.device)
    chosen = 1 + places[torch.arange(bs * each, device=table.device) % pages]
    slots: torch.Tensor = chosen.view(bs, each, 1) * page + torch.arange(page, device=table.device)
    return slots.view(bs, -1)[:, :length].to(table.dtype)


def _first_draft(worker: Any, bs: int) -> EagleDraftInput:
    """Random tokens and states: experts of a mixture are chosen by them, and zeros multiply faster."""
    drafts, device = worker.draft_worker, worker.device
    size, dtype = get_draft_recurrent_hidden_state_spec(drafts.draft_runner)
    first = torch.randint(vocabulary(drafts), (bs, worker.topk), device=device)
    proposes = worker.server_args.speculative_use_rejection_sampling
    return EagleDraftInput(
        topk_p=torch.full((bs, worker.topk), 1 / (1 + worker.topk), device=device),
        topk_index=first,
        draft_probs=certain(first, vocabulary(drafts)) if proposes else None,
        hidden_states=None if size is None else torch.randn(bs, size, device=device).to(dtype),
        bonus_tokens=torch.randint(worker.target_worker.model_config.vocab_size, (bs,), device=device),
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )


def _fields(worker: Any, bs: int, context: int, asks: Asks) -> dict[str, Any]:
    """What stays the same from step to step. No copy from the host: it would wait for the device."""
    runner, device = worker.target_worker.model_runner, worker.device
    ones = torch.ones(bs, device=device)
    greedy = asks is Asks.GREEDY
    sampling = SamplingBatchInfo(
        temperatures=ones.unsqueeze(1),
        top_ps=ones,
        top_ks=torch.full((bs,), 1 if greedy else TOP_K_ALL, dtype=torch.int32, device=device),
        min_ps=torch.zeros(bs, device=device),
        is_all_greedy=greedy,
        is_any_greedy=greedy,
        need_top_p_sampling=asks is Asks.TRUNCATED,
        need_top_k_sampling=asks is Asks.TRUNCATED,
        need_min_p_sampling=False,
        vocab_size=runner.model_config.vocab_size,
        device=device,
    )
    backends = [backend for backend in worker.spec_v2_attn_backends if backend is not None]
    on_host = any(getattr(backend, "needs_cpu_seq_lens", True) for backend in backends)
    requests: Any = [
        SimpleNamespace(rid=f"rehearsal-{i}", kv_committed_len=context, **dict.fromkeys(_ABSENT)) for i in range(bs)
    ]
    return {
        "reqs": requests,
        "req_to_token_pool": worker.req_to_token_pool,
        "token_to_kv_pool_allocator": worker.token_to_kv_pool_allocator,
        "model_config": runner.model_config,
        "device": device,
        "spec_algorithm": runner.spec_algorithm,
        "sampling_info": sampling,
        "return_logprob": asks is Asks.LOGPROBS,
        "multimodal_inputs": [None] * bs,
        "req_pool_indices": torch.arange(1, bs + 1, device=device),
        "seq_lens": torch.full((bs,), context, device=device),
        "orig_seq_lens": torch.full((bs,), context, dtype=torch.int32, device=device),
        "seq_lens_cpu": torch.full((bs,), context) if on_host else None,
        "seq_lens_sum": bs * context if on_host else None,
    }
