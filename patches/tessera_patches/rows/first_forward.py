"""The first forward of a model, before anything is served: what its rows are.

No list of architectures says it. One prompt is computed by its ids, while hooks note what the modules return. Every
tensor-parallel rank does the same.
"""

import logging
from collections.abc import Callable
from typing import Any

from tessera import config
from tessera.rows.forward_notes import ForwardNotes, factor_of
from tessera.rows.store import RowStore
from tessera_patches.engine.model import runner_of, vocabulary
from tessera_patches.inject.proof import prove_embeddings
from tessera_patches.rows import host, memory, runtime
from tessera_patches.rows.one_prompt import note_forward

TOKENS = 8

logger = logging.getLogger(__name__)


def announce(original: Callable[[Any], dict[str, Any]], scheduler: Any) -> dict[str, Any]:
    """AROUND ``Scheduler.get_init_info``: all is loaded, nothing is served. Ends the process where a check fails.

    The main process learns what is on here: a scheduler that was started without plugins says nothing.
    """
    host.allocate(scheduler)
    memory.send_first_stats(scheduler)
    if config.active.rows or config.active.inject:
        _check_forward(scheduler)
    return original(scheduler) | {config.ON: [*config.active.features(), *config.conditions]}


def _check_forward(scheduler: Any) -> None:
    tokens = vocabulary(scheduler)
    ids = [(1 + i) * tokens // (TOKENS + 1) for i in range(TOKENS)]
    notes = note_forward(scheduler, ids)
    if runtime.rows is not None:
        _note_scale(runtime.rows, notes, type(runner_of(scheduler).model).__name__)
    if config.active.inject:
        prove_embeddings(scheduler, ids, notes)


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
