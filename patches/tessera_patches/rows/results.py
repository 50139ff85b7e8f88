"""Results: read the rows of requests that finish, or got far enough; send what was read.

Scheduler process.
"""

from typing import Any

import numpy as np

from tessera.rows.service import Finished, RowService
from tessera_patches.engine import requests
from tessera_patches.engine.batches import nothing_runs
from tessera_patches.rows import runtime, state, weights
from tessera_patches.rows.state import State

_MANY = 16
"""So many requests with a complete read are worth a read of their own, though nobody waits for it yet."""


def note_finished(processor: Any, req: Any) -> None:
    """BEFORE ``_maybe_collect_routed_experts``: the request has finished and still owns its slots."""
    own = state.of(req)
    if runtime.service is None or not own.rows or requests.is_refused(req):
        return
    try:
        finished = _finished(req, own)
        if weights.is_outdated(req):
            runtime.service.note_outdated(finished)
        else:
            runtime.service.note_finished(finished)
    except Exception as error:  # noqa: BLE001 - it is logged there: one request's failure must not end the server
        runtime.service.note_failed(_key(req, own), error)


def _finished(req: Any, own: State) -> Finished:
    ids = requests.prompt_ids(req)
    prompt_ids = np.array(ids, np.int64) if requests.has_session(req) else ()
    tokens = len(ids), requests.answered_tokens(req)
    return Finished(_key(req, own), requests.row_of(req), *tokens, own.requested, own.done, prompt_ids=prompt_ids)  # type: ignore[arg-type]


def _key(req: Any, own: State) -> str:
    key: str = own.token + req.rid
    return key


def note_prefilled(processor: Any, batch: Any, result: Any) -> None:
    """BEFORE ``process_batch_result_prefill``: requests that are read while they run are due from now on."""
    if runtime.due is None:
        return
    for req in batch.reqs:
        own: State = state.of(req)
        if _reads_while_running(own) and requests.is_prefilled(req):
            own.prefilled = requests.retractions(req)
            runtime.due.add(req)


def tokens_to_next_read(req: Any) -> int | None:
    """How many tokens this running request needs for its next read; 0 or less where one is complete.

    None where it finished, or was retracted: it keeps its tokens, but their rows are there only once its last chunk is
    prefilled again, and it is due again. An outdated one has no more reads; but who reads a stream must learn that.
    """
    own = state.of(req)
    if req.finished() or own.prefilled != requests.retractions(req):
        return None
    if weights.is_outdated(req):
        return 0 if req.stream and not own.informed else None
    nexts = [
        capability.next_read(options, own.done.get(name, 0)) for name, (capability, options) in own.requested.items()
    ]
    return min(upto for upto in nexts if upto is not None) - requests.output_tokens(req)


def _reads_while_running(own: State) -> bool:
    return own.rows and any(
        capability.next_read(options, 0) is not None for capability, options in own.requested.values()
    )


def _note_progress(service: RowService, req: Any) -> None:
    """The rows of all but the last generated token are complete; see docs/design/architecture.md, point 1."""
    own: State = state.of(req)
    output_tokens = requests.output_tokens(req)
    tokens = len(requests.prompt_ids(req)), output_tokens
    running = Finished(_key(req, own), requests.row_of(req), *tokens, own.requested, dict(own.done), running=True)
    if weights.is_outdated(req):
        service.note_outdated(running)
        own.informed = True
        return
    service.note_finished(running)
    for name, (capability, options) in own.requested.items():
        if capability.next_read(options, 0) is not None:
            own.done[name] = capability.complete(output_tokens)


def read_rows(streamer: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE ``SchedulerOutputStreamer.stream_output``: the step's last act, before the next forward is launched.

    What a stream waits for is read once it is complete. Others wait until many are: when requests that began together
    end together, only their last reads are left.
    """
    service, due = runtime.service, runtime.due
    if service is None or due is None:
        return
    ready = due.step()
    if len(ready) >= _MANY or any(req.stream for req in ready):
        for req in due.take():
            _note_progress(service, req)
    service.flush()


def send_arrived(scheduler: Any, *args: Any) -> None:
    """BEFORE ``Scheduler.process_batch_result``: the next forward is launched, and this step's may still run."""
    if runtime.outbox is not None:
        runtime.outbox.send()


def send_waiting(result: None, scheduler: Any, *args: Any) -> None:
    """AFTER ``Scheduler.process_input_requests``: with no forward under way there is nothing else to wait for."""
    if runtime.outbox is not None:
        runtime.outbox.send(wait=nothing_runs(scheduler))
