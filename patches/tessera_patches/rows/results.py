"""Results: read the rows of requests that finish, or have completed a fingerprint; send what was read.

Scheduler process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from tessera.admission import EMBED_KEY, READ_KEY, STATES_KEY, TOKEN_KEY, TOPLOC_KEY
from tessera.delivery.outcome import Ids
from tessera.fingerprint.chunks import CHUNK_ROWS, complete
from tessera.rows.service import Finished, RowService
from tessera_patches.core import carried
from tessera_patches.rows import runtime, weights
from tessera_patches.rows.weights import PROVEN

_TOLD = "tessera_told"
"""The attribute of SGLang's ``Req`` that says that the main process knows that its rows are outdated."""
_COMPUTED = "tessera_computed"
"""The attribute that says how often it had been retracted when the rows of all its tokens were last there."""
_MANY = 16
"""So many requests with a complete fingerprint are worth a read of their own, though nobody waits for it yet."""


def note_finished(processor: Any, req: Any) -> None:
    """BEFORE ``_maybe_collect_routed_experts``: the request has finished and still owns its slots."""
    if runtime.service is None or _is_refused(req.finished_reason):
        return
    asked = carried.of(req)
    embed, states, fingerprints = asked.get(EMBED_KEY), asked.get(STATES_KEY), asked.get(TOPLOC_KEY) or None
    if embed is not None or states is not None or fingerprints is not None or READ_KEY in asked:
        key = asked[TOKEN_KEY] + req.rid
        try:
            read = np.array(req.origin_input_ids, np.int64) if READ_KEY in asked else None
            if weights.outdated(req):
                runtime.service.outdated(key, read)
                return
            runtime.service.finished(_finished(key, req, embed, states, fingerprints, read))
        except Exception as error:  # noqa: BLE001 - it is logged there: one request's failure must not end the server
            runtime.service.failed(key, error)


def _is_refused(reason: Any) -> bool:
    """Whether the answer is an error of SGLang's. Aborted on demand, a request keeps the tokens that it has."""
    return isinstance(reason, FINISH_ABORT) and reason.status_code is not None


def _finished(
    key: str, req: Any, embed: str | None, states: str | None, fingerprints: str | None, read: Ids | None
) -> Finished:
    prompt_tokens, output_tokens = len(req.origin_input_ids), len(req.output_ids_through_stop)
    proven = getattr(req, PROVEN, 0)
    return Finished(
        key, req.req_pool_idx, prompt_tokens, output_tokens, embed, states, fingerprints, proven, input_ids=read
    )


def watch_proven(processor: Any, batch: Any, result: Any) -> None:
    """BEFORE ``process_batch_result_prefill``: requests that want fingerprints have them read while they run."""
    if runtime.watch is None:
        return
    for req in batch.reqs:
        if _wants_fingerprints(req) and req.inflight_middle_chunks <= 0 and not req.is_retracted:
            setattr(req, _COMPUTED, req.retraction_count)
            runtime.watch.add(req)


def lacking(req: Any) -> int | None:
    """How many tokens this running request's next fingerprint lacks; a fingerprint needs the token after its last row.

    None where it finished, or was retracted: it keeps its tokens, but their rows are there only once its last chunk is
    prefilled again, and it is watched again. An outdated one gets none; but who reads a stream must learn that.
    """
    if req.finished() or getattr(req, _COMPUTED) != req.retraction_count:
        return None
    if weights.outdated(req):
        return 0 if req.stream and not hasattr(req, _TOLD) else None
    return CHUNK_ROWS * getattr(req, PROVEN, 0) + 1 - len(req.output_ids)


def _wants_fingerprints(req: Any) -> bool:
    return bool(carried.of(req).get(TOPLOC_KEY))


def _note_progress(service: RowService, req: Any) -> None:
    """The rows of all but the last generated token are complete; see docs/design/architecture.md, point 1."""
    asked, proven, output_tokens = carried.of(req), getattr(req, PROVEN, 0), len(req.output_ids)
    key, prompt_tokens = asked[TOKEN_KEY] + req.rid, len(req.origin_input_ids)
    if weights.outdated(req):
        service.outdated(key)
        setattr(req, _TOLD, True)
        return
    wire = asked[TOPLOC_KEY]
    service.finished(
        Finished(key, req.req_pool_idx, prompt_tokens, output_tokens, fingerprints=wire, proven=proven, running=True)
    )
    setattr(req, PROVEN, complete(output_tokens))


def read_rows(streamer: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE ``SchedulerOutputStreamer.stream_output``: the step's last act, before the next forward is launched.

    A stream's fingerprint is read once it is complete. Others wait until many are complete: when requests that began
    together end together, only their last ones are left to be built.
    """
    service, watch = runtime.service, runtime.watch
    if service is None or watch is None:
        return
    ready = watch.step()
    if len(ready) >= _MANY or any(req.stream for req in ready):
        for req in watch.take():
            _note_progress(service, req)
    service.flush()


def send_arrived(scheduler: Any, *args: Any) -> None:
    """BEFORE ``Scheduler.process_batch_result``: the next forward is launched, and this step's may still run."""
    if runtime.outbox is not None:
        runtime.outbox.send()


def send_waiting(result: None, scheduler: Any, *args: Any) -> None:
    """AFTER ``Scheduler.process_input_requests``: with no forward under way there is nothing else to wait for."""
    if runtime.outbox is not None:
        runtime.outbox.send(wait=scheduler.last_batch is None)
