"""Injection: vectors take their places in the forward, and the prefix cache tells them apart. Scheduler process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from tessera.capabilities.inject.injection import Injection
from tessera.capabilities.inject.keys import KeyedIds
from tessera.capabilities.inject.pending import NAME
from tessera.capabilities.inject.place import Piece, place, plan
from tessera_patches.core.changes import replace_method
from tessera_patches.engine.batches import extend_lens, prefix_lens
from tessera_patches.engine.model import is_draft
from tessera_patches.engine.requests import own_prompt_ids, prefilled_ids, prompt_ids
from tessera_patches.inject import runtime
from tessera_patches.rows import state


class Injected(NamedTuple):
    """What a request of SGLang carries as ``tessera_injected``."""

    injection: Injection
    ids: KeyedIds


def place_at_embedding(embedding: Any) -> None:
    """Vectors take their places in what the embedding layer returns, not in ``input_embeds``, which the model ignores.

    It is called once in each forward, with all tokens.
    """
    compute = embedding.forward

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        embeds: torch.Tensor = compute(*args, **kwargs)
        found, runtime.next_plan = runtime.next_plan, None
        return embeds if found is None else place(embeds, found)

    replace_method(place_at_embedding, embedding, "forward", forward)
    runtime.placed_at_embedding = True


def attach(result: None, req: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``Req.__init__``: from here on the prompt shows keys where vectors go, so that every cache sees them."""
    wire = state.of(req).wires.pop(NAME, None)
    if not wire:
        return
    injection = Injection.from_wire(wire)
    ids = KeyedIds(injection, prompt_ids(req))
    ids.hide(own_prompt_ids(req))
    req.tessera_injected = Injected(injection, ids)


def prepare(original: Callable[..., None], batch: Any) -> None:
    """AROUND ``ScheduleBatch.prepare_for_extend``: the model gets the ids; the vectors set out for the device."""
    injected = _injected(batch.reqs)
    if not injected:
        original(batch)
        return
    with _shown(injected):
        original(batch)
    lengths = extend_lens(batch)
    offsets = accumulate(lengths, initial=0)
    batch.tessera_plan = found = plan(
        [
            Piece(own.injection, start, start + length, offset)
            for req, start, length, offset in zip(batch.reqs, prefix_lens(batch), lengths, offsets, strict=False)
            if (own := getattr(req, "tessera_injected", None)) is not None
        ],
        batch.device,
    )
    if found is not None:  # with --enable-dp-attention, ranks agree on a graph before there is a ForwardBatch
        batch.replace_embeds = found.vectors


def attach_plan(forward_batch: Any, cls: type, batch: Any, model_runner: Any, **kwargs: Any) -> None:
    """AFTER ``ForwardBatch.init_new``, on the forward stream: the target's prefill, and no other forward, injects."""
    found = getattr(batch, "tessera_plan", None)
    if found is None or is_draft(model_runner):
        return
    batch.tessera_plan = batch.replace_embeds = None  # the batch may live on as the running one
    if forward_batch.forward_mode not in (ForwardMode.EXTEND, ForwardMode.MIXED):
        forward_batch.replace_embeds = None
        return
    if found.vectors.is_cuda:
        found.used_on(torch.cuda.current_stream())
    forward_batch.tessera_plan = found
    forward_batch.replace_embeds = found.vectors  # SGLang runs no graph for such a forward


def place_vectors(
    original: Callable[..., dict[str, Any]], runner: Any, forward_batch: Any, *args: Any
) -> dict[str, Any]:
    """AROUND ``ModelRunner._extend_forward_kwargs``: embed the tokens, put the vectors in their places."""
    found = getattr(forward_batch, "tessera_plan", None)
    if runtime.placed_at_embedding:
        runtime.next_plan = found
    if found is None:
        return original(runner, forward_batch, *args)
    forward_batch.replace_embeds = None  # SGLang would put them in place too, but knows no other way than that
    kwargs = original(runner, forward_batch, *args)
    if not runtime.placed_at_embedding:
        kwargs["input_embeds"] = place(runtime.embedding(forward_batch.input_ids), found)
    return kwargs


def show_ids(original: Callable[..., None], processor: Any, req: Any, input_token_logprobs: Any) -> None:
    """AROUND ``_process_input_token_logprobs``, which tells the client which tokens the prompt has."""
    with _shown(_injected([req])):
        original(processor, req, input_token_logprobs)


def show_last_ids(original: Callable[..., None], batch: Any) -> None:
    """AROUND ``cumulate_penalty_output_tokens``, which takes a prompt's last id where there is no output yet."""
    with _shown(_injected(batch.reqs)):
        original(batch)


def _injected(reqs: Sequence[Any]) -> list[Any]:
    return [req for req in reqs if hasattr(req, "tessera_injected")]


@contextmanager
def _shown(reqs: Sequence[Any]) -> Iterator[None]:
    for req in reqs:
        req.tessera_injected.ids.show(prompt_ids(req))
        req.tessera_injected.ids.show(prefilled_ids(req))
    try:
        yield
    finally:
        for req in reqs:
            req.tessera_injected.ids.hide(prompt_ids(req))
            req.tessera_injected.ids.hide(prefilled_ids(req))
