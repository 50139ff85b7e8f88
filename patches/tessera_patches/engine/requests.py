"""SGLang's request in a scheduler (``Req``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT


def row_of(req: Any) -> int:
    """Its row in ``req_to_token``, while it owns one."""
    row: int = req.req_pool_idx
    return row


def prompt_ids(req: Any) -> Sequence[int]:
    """The prompt's token ids, as the prefix cache knows them: keys stand where vectors are injected."""
    ids: Sequence[int] = req.origin_input_ids
    return ids


def output_tokens(req: Any) -> int:
    """How many tokens were generated so far: their rows are there, but for the last one's."""
    return len(req.output_ids)


def answered_tokens(req: Any) -> int:
    """How many tokens the answer of a finished request has, through the stop."""
    return len(req.output_ids_through_stop)


def is_refused(req: Any) -> bool:
    """Whether its answer is an error of SGLang's. Aborted on demand, a request keeps the tokens that it has."""
    reason = req.finished_reason
    return isinstance(reason, FINISH_ABORT) and reason.status_code is not None


def is_prefilled(req: Any) -> bool:
    """Whether no chunk of its prompt is left to compute."""
    return req.inflight_middle_chunks <= 0 and not req.is_retracted


def retractions(req: Any) -> int:
    """How often it had to give its slots back."""
    count: int = req.retraction_count
    return count
