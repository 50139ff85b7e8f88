"""The first forwards of a model, before anything is served: what its rows are, and where vectors can be put.

No list of architectures says either. One prompt is computed by its ids, while hooks note what the modules return. If
vectors may be injected, the same embeddings are then put into the places of other ids: only where this gives the same
rows does the model compute from its embedding layer, and from nothing else.

Logits are a function of the rows and need no comparison of their own. Every tensor-parallel rank does the same.
"""

import inspect
import logging
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from tessera import config
from tessera.capabilities.inject.place import Plan
from tessera.capabilities.inject.refusals import embeddings_ignored
from tessera.rows.forward_notes import ForwardNotes, distance, factor_of
from tessera.rows.store import RowStore
from tessera_patches.apply import start_error
from tessera_patches.engine.batches import synchronized
from tessera_patches.engine.cache import prefix_cache, release, request_pool, slot_allocator
from tessera_patches.engine.model import configuration, dtype, hidden_size, runner_of, vocabulary
from tessera_patches.engine.ranks import forward_through_stages
from tessera_patches.engine.requests import extend_to
from tessera_patches.inject import forward as inject
from tessera_patches.rows import host, memory, runtime

TOKENS = 8
TOLERANCE = {torch.float32: 1e-4}
"""How far rows of the same embeddings may be apart; both forwards run the same kernels."""
TOLERANCE_16_BIT = 2e-2

logger = logging.getLogger(__name__)


def announce(original: Callable[[Any], dict[str, Any]], scheduler: Any) -> dict[str, Any]:
    """AROUND ``Scheduler.get_init_info``: all is loaded, nothing is served. Ends the process where a check fails.

    The main process learns what is on here: a scheduler that was started without plugins says nothing.
    """
    host.allocate(scheduler)
    memory.introduce(scheduler)
    if config.active.rows or config.active.inject:
        _check_forward(scheduler)
    return original(scheduler) | {config.ON: config.active.features()}


def _check_forward(scheduler: Any) -> None:
    model = runner_of(scheduler).model
    tokens = vocabulary(scheduler)
    ids = [(1 + i) * tokens // (TOKENS + 1) for i in range(TOKENS)]
    notes = _by_ids(scheduler, model, ids)
    if runtime.rows is not None:
        _note_scale(runtime.rows, notes, type(model).__name__)
    if config.active.inject:
        _prove_embeddings(scheduler, model, ids, notes)


def _by_ids(scheduler: Any, model: Any, ids: list[int]) -> ForwardNotes:
    with ForwardNotes(model, LogitsProcessor, ids, hidden_size(scheduler)) as notes:
        _forward(scheduler, ids, None)
    return notes


def _note_scale(store: RowStore, notes: ForwardNotes, name: str) -> None:
    """Rows are the state after the last norm; what a model makes smaller before its head is made larger again."""
    if notes.rows is None or notes.state is None:
        return
    factor = factor_of(notes.rows, notes.state)
    if factor is None:
        logger.warning("tessera: the rows of %s are what its head reads, which is not what its last norm gives", name)
    elif factor != 1:
        store.factor = 1 / factor
        logger.info("tessera: %s multiplies by %.4g before its head; rows are the state before that", name, factor)


def _prove_embeddings(scheduler: Any, model: Any, ids: list[int], notes: ForwardNotes) -> None:
    name = type(model).__name__
    if notes.embedding is None or notes.embeds is None:
        raise start_error(embeddings_ignored(name, "no module of it gives one embedding for each token id"))
    runtime.embedding = notes.embedding
    other = ids[::-1]
    plan = Plan(torch.arange(TOKENS, device=notes.embeds.device), notes.embeds, None)
    ignored = partial(_why_ignored, scheduler, model, other, plan, notes.rows)
    if "input_embeds" in inspect.signature(model.forward).parameters and not ignored():
        return
    inject.place_at_embedding(notes.embedding)
    if why := ignored():
        raise start_error(embeddings_ignored(name, why))


def _why_ignored(scheduler: Any, model: Any, other: list[int], plan: Plan, rows: torch.Tensor | None) -> str:
    """How rows of ``other`` ids with the vectors of ``plan`` show that these do not reach them; empty where they do."""
    try:
        with ForwardNotes(model, LogitsProcessor, other, hidden_size(scheduler)) as injected:
            _forward(scheduler, other, plan)
    except Exception as error:  # noqa: BLE001 - whatever a model's code raises where it is given embeddings
        return f"it fails with embeddings: {error!r}"
    apart = distance(injected.rows, rows)
    close = apart <= TOLERANCE.get(dtype(scheduler), TOLERANCE_16_BIT)  # NaN is not
    return "" if close else f"rows of the same embeddings are {apart:.1e} apart"


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
    batch = synchronized(scheduler, batch)
    forward_batch = ForwardBatch.init_new(batch, runner, return_hidden_states_before_norm=False)
    forward_batch.tessera_plan = plan
    try:
        forward_through_stages(runner, forward_batch)
    finally:
        torch.get_device_module(runner.device).synchronize()
        release(request, cache)
