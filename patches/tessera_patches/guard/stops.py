"""The end of an answer among several accepted tokens, where plain decoding would end it. Scheduler process."""

from __future__ import annotations  # Python 3.11 has no array[int]

from array import array
from collections.abc import Callable
from typing import Any

from tessera_patches.engine.requests import output_ids, output_tokens


def finish_token_by_token(original: Callable[..., None], req: Any, new_accepted_len: int = 1) -> None:
    """AROUND ``Req.update_finish_state``: checks a step that ends a request again, token by token.

    SGLang checks all tokens of a step together: stop strings before stop tokens, and strings in the order of the
    request, whatever comes first in the text; up to 0.5.17 the length before either. A regex may match within the step,
    but not at its end. Of 300 random requests 28 end elsewhere (0.5.17: 65).
    """
    if new_accepted_len <= 1 or req.finished():
        original(req, new_accepted_len)
        return
    accepted, abort = output_ids(req)[-new_accepted_len:], req.to_finish
    original(req, new_accepted_len)
    if req.finished() or req.sampling_params.stop_regex_strs:
        _finish_at_first_stop(original, req, accepted)
        if abort is not None:
            req.finished_reason, req.finished_len = abort, req.finished_len or output_tokens(req)


def _finish_at_first_stop(original: Callable[..., None], req: Any, accepted: array[int]) -> None:
    """Add the accepted tokens one by one. ``output_ids`` keeps all of them; ``finished_len`` is set to the end."""
    req.finished_reason = req.finished_len = None
    # The grammar has accepted all of them, so it can only end with the last one.
    grammar, req.grammar = req.grammar, None
    ids = output_ids(req)
    del ids[-len(accepted) :]
    for left, token in zip(range(len(accepted) - 1, -1, -1), accepted, strict=True):
        ids.append(token)
        if left == 0:
            req.grammar = grammar
        if not req.finished():
            original(req, 1)
            if req.finished() and req.finished_len is None:
                req.finished_len = len(ids)
