"""SGLang's batches of requests (``ScheduleBatch``, ``ForwardBatch``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from tessera_patches.engine.cache import request_pool, slot_allocator
from tessera_patches.engine.model import algorithm_of, configuration
from tessera_patches.engine.requests import committed, committed_fields

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.scheduler_components.dp_attn import SchedulerDPAttnAdapter
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleVerifyInput
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

_NONE = ("lora_id", "grammar", "token_type_ids")
"""What SGLang reads of a request in a decode step, and what a placeholder has not."""


def rows_of(batch: ScheduleBatch | ForwardBatch) -> torch.Tensor:
    """Each request's row in the slot map, ``[bs]`` int64."""
    rows: torch.Tensor = batch.req_pool_indices
    return rows


def new_slots(batch: ScheduleBatch | ForwardBatch) -> torch.Tensor:
    """The KV slots that a forward writes: one for each token that it computes, ``[tokens]`` int64."""
    slots: torch.Tensor = batch.out_cache_loc
    return slots


def set_new_slots(batch: ScheduleBatch, slots: torch.Tensor) -> None:
    """Have the next forward write to these."""
    batch.out_cache_loc = slots


def seq_lens(batch: ScheduleBatch | ForwardBatch) -> torch.Tensor:
    """How many tokens of each request are in the KV cache before a decode step or a verification, ``[bs]`` int64."""
    lens: torch.Tensor = batch.seq_lens
    return lens


def batch_size(batch: ScheduleBatch | ForwardBatch) -> int:
    """How many requests it has."""
    return len(seq_lens(batch))


def take_host_lens(drafts: EagleVerifyInput, batch: ScheduleBatch) -> None:
    """Give a verification what the host knows of `seq_lens`, as far as an attention backend needs it."""
    lens: torch.Tensor | None = batch.seq_lens_cpu
    drafts.seq_lens_cpu = lens
    drafts.seq_lens_sum = None if lens is None else int(lens.sum())


def prefix_lens(batch: ScheduleBatch) -> list[int]:
    """How many tokens of each request are in the KV cache before a prefill, ``[bs]``."""
    lens: list[int] = batch.prefix_lens
    return lens


def extend_lens(batch: ScheduleBatch) -> list[int]:
    """How many tokens of each request a prefill computes, ``[bs]``."""
    lens: list[int] = batch.extend_lens
    return lens


def committed_tokens(batch: ScheduleBatch) -> int:
    """How many tokens of all its requests are in the KV cache, without those of the running step."""
    return sum(map(committed, batch.reqs))


def all_greedy(batch: ScheduleBatch | ForwardBatch) -> bool:
    """Whether none of its requests samples."""
    sampling: SamplingBatchInfo = batch.sampling_info
    greedy: bool = sampling.is_all_greedy
    return greedy


def any_greedy(batch: ScheduleBatch | ForwardBatch) -> bool:
    """Whether one of its requests does not sample."""
    sampling: SamplingBatchInfo = batch.sampling_info
    greedy: bool = sampling.is_any_greedy
    return greedy


def speculative_input(batch: ScheduleBatch | ForwardBatch) -> Any:
    """An ``EagleDraftInput``, ``EagleVerifyInput`` or ``EagleDraftExtendInput``, by what is computed."""
    return batch.spec_info


def draft_extend_lens(drafts: EagleDraftExtendInput) -> torch.Tensor | None:
    """How many tokens of each request a draft-extend computes, ``[bs]``; None during a capture, which reads nothing."""
    lens: torch.Tensor | None = getattr(drafts, "extend_seq_lens_tensor", None)
    return lens


def placeholder_fields(worker: EAGLEWorkerV2, bs: int, context: int) -> dict[str, Any]:
    """Fields of a ``ScheduleBatch`` that decodes requests that no client sent, by name.

    They have the first rows of the slot map. Nothing is copied from the host, which would wait for the device. Those of
    sampling, ``forward_mode`` and ``spec_info`` are the caller's.

    Args:
        worker: whose pools the batch uses.
        bs: requests.
        context: tokens of each request in the KV cache.
    """
    target: TpModelWorker = worker.target_worker
    runner: ModelRunner = target.model_runner
    device = worker.device
    on_host = any(_reads_host_lens(backend) for backend in worker.spec_v2_attn_backends if backend is not None)
    return {
        "reqs": [_placeholder(f"warm-up-{i}", context) for i in range(bs)],
        "req_to_token_pool": request_pool(worker),
        "token_to_kv_pool_allocator": slot_allocator(worker),
        "model_config": configuration(runner),
        "device": device,
        "spec_algorithm": algorithm_of(runner),
        "multimodal_inputs": [None] * bs,
        "req_pool_indices": torch.arange(1, bs + 1, device=device),
        "seq_lens": torch.full((bs,), context, device=device),
        "orig_seq_lens": torch.full((bs,), context, dtype=torch.int32, device=device),
        "seq_lens_cpu": torch.full((bs,), context) if on_host else None,
        "seq_lens_sum": bs * context if on_host else None,
    }


def _reads_host_lens(backend: AttentionBackend) -> bool:
    return bool(getattr(backend, "needs_cpu_seq_lens", True))


def _placeholder(rid: str, tokens: int) -> Req:
    """What a decode step reads of a request with so many tokens in the KV cache."""
    return SimpleNamespace(rid=rid, **committed_fields(tokens), **dict.fromkeys(_NONE))


def pools_logits(batch: ForwardBatch) -> bool:
    """Whether scores are made of some positions' logits: since 0.5.19."""
    return getattr(batch, "token_indices_to_pool", None) is not None


def is_padded(batch: ForwardBatch) -> bool:
    """Whether ranks with batches of their own compute together (``--enable-dp-attention``), and pad them.

    Of the fields that say so, the one that a prefill graph's copy of the batch has, too.
    """
    return batch.global_num_tokens_for_logprob_cpu is not None


def synchronize_batch(scheduler: Scheduler, batch: ScheduleBatch) -> ScheduleBatch:
    """The batch with the sizes of the other ranks' batches, where ranks have their own; waits for these ranks."""
    adapter: SchedulerDPAttnAdapter = scheduler.dp_attn_adapter
    found: ScheduleBatch = adapter.maybe_prepare_mlp_sync_batch(batch)
    return found


def waiting(scheduler: Scheduler) -> list[Req]:
    """The requests that have yet to be prefilled, or were retracted."""
    queue: list[Req] = scheduler.waiting_queue
    return queue


def nothing_runs(scheduler: Scheduler) -> bool:
    """Whether no forward is under way whose result is yet to be handled; with ``--pp-size``, in no stage."""
    batches: list[ScheduleBatch | None] = getattr(scheduler, "mbs", [scheduler.last_batch])
    return all(batch is None for batch in batches)
