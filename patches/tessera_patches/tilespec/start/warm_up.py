"""Warm-up decode steps, through the worker's own entry, before anything is served.

They compile and load all kernels of a step, fail at start instead of in a request, and measure whole steps over
contexts of several lengths. Their requests use rows and KV slots of the pools, which are empty; what they write is
overwritten before it is read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.allocation import assign_req_to_token_pool_func
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec

from tessera.tilespec.policy import Choice
from tessera_patches.engine.batches import placeholder_fields
from tessera_patches.engine.cache import allocatable_slots, reserved_slots, slot_map
from tessera_patches.engine.model import context_length, vocabulary
from tessera_patches.engine.options import page_size, samples_drafts
from tessera_patches.engine.workers import clear_read_event, target_runner
from tessera_patches.tilespec.draft.proposals import one_hot_probs
from tessera_patches.tilespec.draft.vocabulary import draft_vocab_size

_WARM_UPS = 2
_STEPS = 5


class SamplingKind(Enum):
    """Sampling parameters of requests. Each kind runs other kernels."""

    GREEDY = "temperature 0"
    TEMPERATURE = "by temperature alone"
    TRUNCATED = "by temperature, top-k and top-p"
    LOGPROBS = "by temperature, with log-probabilities"


class FixedChoice:
    """A stand-in for `tessera.tilespec.decider.Decider` with the same choice for each step."""

    def __init__(self) -> None:
        self._choice: Choice | None = None

    def fix(self, choice: Choice) -> None:
        """Set the choice of the next steps."""
        self._choice = choice

    def choose(self, *_: int) -> Choice | None:
        """See `tessera.tilespec.decider.Decider.choose`."""
        return self._choice

    def on_verify(self, *_: Any) -> None:
        """See `tessera.tilespec.decider.Decider.on_verify`."""


class WarmUpBatch:
    """A batch of warm-up requests with contexts of one length.

    Args:
        worker: a `tessera_patches.tilespec.worker.AdaptiveWorker`; its decider is replaced.
        bs: requests of the batch, at most those of the request pool.
        context: tokens of each request in the KV cache.
        kind: their sampling parameters.
    """

    def __init__(self, worker: Any, bs: int, context: int, kind: SamplingKind) -> None:
        self._worker, self._bs = worker, bs
        self._decider = FixedChoice()
        worker.decide_by(self._decider)
        self._fields = _fields(worker, bs, context, kind)
        self._next = _first_draft(worker, bs)

    def step(self, steps: int, tier: int | None = None, tokens: int | None = None) -> None:
        """Run a step. The next step begins at the same length, with the drafts of this one.

        Args:
            steps: draft steps.
            tier: the ragged graph's tokens; None is a uniform verification.
            tokens: tokens to verify; all by default.

        Raises:
            RuntimeError: a CUDA graph was not used.
        """
        full = self._bs * (steps + 1)
        choice = Choice(steps, tier, min(tokens or tier or full, full), 0.0, 1.0, 1.0, 0)
        self._decider.fix(choice)
        batch = ScheduleBatch(**self._fields, forward_mode=ForwardMode.DECODE, spec_info=self._next)
        result = self._worker.forward_batch_generation(batch)
        if result.accept_lens.is_cuda and not result.can_run_cuda_graph:
            raise RuntimeError(f"--tile-spec: a verification of {choice} ran without its CUDA graph")
        self._next = result.next_draft_input
        # As SGLang's FutureMap returns them; without drafts these are all tokens of the verification.
        self._next.bonus_tokens = self._next.bonus_tokens.long()

    def seconds(self, steps: int) -> float:
        """Seconds of a step that verifies all tokens, from its start to the next one's, on a CUDA device."""
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
def on_forward_stream(worker: Any) -> Iterator[None]:
    """Run a block on the stream of the scheduler's forwards, so that torch allocates memory for that stream now."""
    module, stream = torch.get_device_module(worker.device), target_runner(worker).forward_stream
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        yield
    module.current_stream().wait_stream(stream)


@contextmanager
def warm_up_batch(
    worker: Any, bs: int, context: int, kind: SamplingKind = SamplingKind.GREEDY
) -> Iterator[WarmUpBatch]:
    """A `WarmUpBatch`, after which the request pool and the acceptance counts are restored."""
    table = slot_map(worker)
    rows = table[1 : bs + 1]
    before = rows.clone()
    slots = _random_slots(worker, bs, context)
    rows[:, : slots.shape[1]] = slots
    try:
        with torch.no_grad():
            yield WarmUpBatch(worker, bs, context, kind)
    finally:
        rows.copy_(before)
        worker.scores.reset()
        clear_read_event(worker)  # else the scheduler waits for it


def warm_up_slot_assignment(worker: Any, bs: int) -> None:
    """Compile SGLang's kernel that assigns KV slots before a step, by assigning none.

    Triton compiles it for each power of two of the batch size, and again for slots that are not aligned to 16 bytes, as
    parts of the list of free slots may be.
    """
    table = slot_map(worker)
    requests = torch.arange(1, bs + 1, device=table.device)
    nowhere = torch.zeros(bs, dtype=torch.int32, device=table.device)
    slots = torch.zeros(2, dtype=torch.int64, device=table.device)
    for free in (slots, slots[1:]):
        assign_req_to_token_pool_func(requests, table, nowhere, nowhere, free, bs)


def longest_context(worker: Any, bs: int) -> int:
    """The greatest context length for which ``bs`` requests fit into the KV pool."""
    room: int = allocatable_slots(worker) // bs - page_size(worker)
    table, positions = slot_map(worker).shape[1], context_length(target_runner(worker))
    return max(min(room, table, positions) - reserved_slots(), 1)


def _random_slots(worker: Any, bs: int, context: int) -> torch.Tensor:
    """KV slots in random pages, ``[bs, context + reserved]``, without repetition if the pool is large enough."""
    page, length = page_size(worker), context + reserved_slots()
    each = -(-length // page)
    pages = allocatable_slots(worker) // page - 1
    table = slot_map(worker)
    places = torch.randperm(pages, device=table.device)
    chosen = 1 + places[torch.arange(bs * each, device=table.device) % pages]
    slots: torch.Tensor = chosen.view(bs, each, 1) * page + torch.arange(page, device=table.device)
    return slots.view(bs, -1)[:, :length].to(table.dtype)


def _first_draft(worker: Any, bs: int) -> EagleDraftInput:
    """Random tokens and states, as experts depend on them, and zeros are multiplied faster."""
    drafts, device = worker.draft_worker, worker.device
    size, dtype = get_draft_recurrent_hidden_state_spec(drafts.draft_runner)
    first = torch.randint(draft_vocab_size(drafts), (bs, worker.topk), device=device)
    return EagleDraftInput(
        topk_p=torch.full((bs, worker.topk), 1 / (1 + worker.topk), device=device),
        topk_index=first,
        draft_probs=one_hot_probs(first, draft_vocab_size(drafts)) if samples_drafts() else None,
        hidden_states=None if size is None else torch.randn(bs, size, device=device).to(dtype),
        bonus_tokens=torch.randint(vocabulary(target_runner(worker)), (bs,), device=device),
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )


def _fields(worker: Any, bs: int, context: int, kind: SamplingKind) -> dict[str, Any]:
    """Fields of ``ScheduleBatch`` for all steps. Nothing is copied from the host, which would wait for the device."""
    device = worker.device
    ones = torch.ones(bs, device=device)
    greedy = kind is SamplingKind.GREEDY
    sampling = SamplingBatchInfo(
        temperatures=ones.unsqueeze(1),
        top_ps=ones,
        top_ks=torch.full((bs,), 1 if greedy else TOP_K_ALL, dtype=torch.int32, device=device),
        min_ps=torch.zeros(bs, device=device),
        is_all_greedy=greedy,
        is_any_greedy=greedy,
        need_top_p_sampling=kind is SamplingKind.TRUNCATED,
        need_top_k_sampling=kind is SamplingKind.TRUNCATED,
        need_min_p_sampling=False,
        vocab_size=vocabulary(target_runner(worker)),
        device=device,
    )
    return {
        **placeholder_fields(worker, bs, context),
        "sampling_info": sampling,
        "return_logprob": kind is SamplingKind.LOGPROBS,
    }
