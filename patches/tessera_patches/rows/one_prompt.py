"""One prompt through the model, before anything is served, with nothing left behind."""

from array import array
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from tessera.capabilities.inject.place import Plan
from tessera.rows.forward_notes import ForwardNotes
from tessera_patches.core import calls
from tessera_patches.engine.batches import synchronize_batch
from tessera_patches.engine.cache import prefix_cache, release, request_pool, slot_allocator
from tessera_patches.engine.model import configuration, hidden_size, runner_of
from tessera_patches.engine.ranks import forward_through_stages
from tessera_patches.engine.requests import extend_to


def note_forward(scheduler: Any, ids: list[int], plan: Plan | None = None) -> ForwardNotes:
    """What the model's modules return for a prompt of these ids, with the vectors of ``plan`` in their places."""
    with ForwardNotes(runner_of(scheduler).model, LogitsProcessor, ids, hidden_size(scheduler)) as notes:
        _forward(scheduler, ids, plan)
    if notes.called:
        calls.count(ForwardNotes)
    return notes


@torch.no_grad()
def _forward(scheduler: Any, ids: list[int], plan: Plan | None) -> None:
    """One prefill without a CUDA graph, whose hooks would not run, and with nothing left in any cache."""
    runner, cache = runner_of(scheduler), prefix_cache(scheduler)
    request = Req("tessera-first-forward", "", array("q", ids), SamplingParams(max_new_tokens=1, temperature=0))
    request.init_next_round_input(cache)
    request.logprob_start_len = -1
    extend_to(request, len(ids))
    batch = ScheduleBatch.init_new(
        [request],
        request_pool(runner),
        slot_allocator(runner),
        cache,
        configuration(runner),
        enable_overlap=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )
    batch.prepare_for_extend()
    batch.input_ids = batch.prefill_input_ids_cpu.to(batch.device)
    # Without positions SGLang only sees that no graph can run; with one, ranks that have batches of their own pad them.
    batch.replace_embeds = torch.empty(0)
    batch = synchronize_batch(scheduler, batch)
    forward_batch = ForwardBatch.init_new(batch, runner, return_hidden_states_before_norm=False)
    forward_batch.tessera_plan = plan
    try:
        forward_through_stages(runner, forward_batch)
    finally:
        torch.get_device_module(runner.device).synchronize()
        release(request, cache)
