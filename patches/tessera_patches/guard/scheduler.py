"""Guards in the scheduler process, against what cannot be checked earlier."""

import re
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NoReturn

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req

from tessera_patches.core.changes import change_class, with_alarm
from tessera_patches.engine.requests import prompt_ids
from tessera_patches.rows import state

TokenLogprobs = tuple[list[Any], list[Any]]

PATTERN_SECONDS = 0.25
"""Time limit for the stop patterns of one request in a step. Some patterns backtrack practically forever."""


def with_empty_tensors(
    original: Callable[..., TokenLogprobs], logprobs: torch.Tensor, *args: Any, **kw: Any
) -> TokenLogprobs:
    """AROUND ``get_token_ids_logprobs``: empty tensors for requests without ids, as SGLang calls ``tolist`` on all."""
    values, ids = original(logprobs, *args, **kw)
    if any(isinstance(value, torch.Tensor) for value in values):
        values = [value if isinstance(value, torch.Tensor) else logprobs.new_empty(0) for value in values]
    return values, ids


def check_request(original: Callable[..., str | None], req: Req, *args: Any, **kw: Any) -> str | None:
    """AROUND ``validate_input_length``, once for each request. Returns the message of a 400, or None.

    Claims are not checked, as the main process has done so and SGLang might truncate them.
    """
    if not prompt_ids(req):
        return "the prompt has no tokens: a text must give at least one"
    if req.sampling_params.stop_regex_strs:
        change_class(check_request, req, ReqWithPatterns)
    return original(req, *args, **kw) if state.of(req).tail is None else None


class ReqWithPatterns(Req):
    """A request with a ``stop_regex``, which is aborted if its patterns take longer than `PATTERN_SECONDS`.

    A class of its own: a hook on all requests takes 2 us of the scheduler's thread for each of them in each step.
    """

    def _check_str_based_finish(self, new_accepted_len: int = 1) -> bool:
        check = super()._check_str_based_finish
        if threading.current_thread() is not threading.main_thread():
            return bool(check(new_accepted_len))
        try:
            # The handler raises re.error inside of the match, with which SGLang aborts a request.
            return bool(with_alarm(ReqWithPatterns, PATTERN_SECONDS, _raise_timeout, lambda: check(new_accepted_len)))
        except re.error as error:  # beside the search that SGLang guards
            self.finished_reason = FINISH_ABORT(f"stop_regex: {error}", HTTPStatus.BAD_REQUEST, "BadRequestError")
            return False


def _raise_timeout() -> NoReturn:
    raise re.error(f"it takes longer than {PATTERN_SECONDS} s")
