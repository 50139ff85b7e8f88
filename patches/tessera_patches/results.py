"""Results: read the rows of finished requests. Scheduler process."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from tessera.admission import EMBED_KEY, STATES_KEY, TOKEN_KEY
from tessera.rows.service import Finished
from tessera_patches import runtime


def note_finished(processor: Any, req: Any) -> None:
    """BEFORE ``_maybe_collect_routed_experts``: the request has finished and still owns its slots."""
    custom = req.sampling_params.custom_params
    if runtime.service is None or not isinstance(custom, dict) or isinstance(req.finished_reason, FINISH_ABORT):
        return
    embed, states = custom.get(EMBED_KEY), custom.get(STATES_KEY)
    if embed is not None or states is not None:
        prompt_tokens, output_tokens = len(req.origin_input_ids), len(req.output_ids_through_stop)
        key = custom[TOKEN_KEY] + req.rid
        runtime.service.finished(Finished(key, req.req_pool_idx, prompt_tokens, output_tokens, embed, states))


def read_rows(streamer: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE ``SchedulerOutputStreamer.stream_output``: the step's last act, before the next forward is launched."""
    if runtime.service is not None:
        runtime.service.flush()
