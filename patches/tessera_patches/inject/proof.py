"""Where vectors can be put: found, and proved, before anything is served.

The embeddings of one prompt are put into the places of other ids. Only where this gives the same rows does the model
compute from its embedding layer, and from nothing else.
"""

import inspect
from functools import partial
from typing import Any

import torch

from tessera.capabilities.inject.place import Plan
from tessera.capabilities.inject.refusals import embeddings_ignored
from tessera.rows.forward_notes import ForwardNotes, distance
from tessera_patches.core.apply import start_error
from tessera_patches.engine.model import dtype, runner_of
from tessera_patches.inject import forward, runtime
from tessera_patches.rows.one_prompt import note_forward

TOLERANCE = {torch.float32: 1e-4}
"""How far rows of the same embeddings may be apart; both forwards run the same kernels."""
TOLERANCE_16_BIT = 2e-2


def prove_embeddings(scheduler: Any, ids: list[int], notes: ForwardNotes) -> None:
    """End the process where vectors do not reach the model.

    Args:
        scheduler: SGLang's ``Scheduler``.
        ids: of a prompt.
        notes: of its forward.
    """
    model = runner_of(scheduler).model
    name = type(model).__name__
    if notes.embedding is None or notes.embeds is None:
        raise start_error(embeddings_ignored(name, "no module of it gives one embedding for each token id"))
    runtime.embedding = notes.embedding
    plan = Plan(torch.arange(len(ids), device=notes.embeds.device), notes.embeds, None)
    ignored = partial(_why_ignored, scheduler, ids[::-1], plan, notes.rows)
    if "input_embeds" in inspect.signature(model.forward).parameters and not ignored():
        return
    forward.place_at_embedding(notes.embedding)
    if why := ignored():
        raise start_error(embeddings_ignored(name, why))


def _why_ignored(scheduler: Any, other: list[int], plan: Plan, rows: torch.Tensor | None) -> str:
    """How rows of ``other`` ids with the vectors of ``plan`` show that these do not reach them; empty where they do."""
    try:
        injected = note_forward(scheduler, other, plan)
    except Exception as error:  # noqa: BLE001 - whatever a model's code raises where it is given embeddings
        return f"it fails with embeddings: {error!r}"
    apart = distance(injected.rows, rows)
    close = apart <= TOLERANCE.get(dtype(scheduler), TOLERANCE_16_BIT)  # NaN is not
    return "" if close else f"rows of the same embeddings are {apart:.1e} apart"
