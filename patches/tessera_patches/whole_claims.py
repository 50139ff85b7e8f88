"""Claims are run whole or not at all: SGLang's limits are those of prompts that are answered, and may cut one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera import config
from tessera.admission import CLAIM_KEY, asked


def check_claim(original: Callable[..., None], manager: Any, obj: Any, input_ids: list[int]) -> None:
    """AROUND ``TokenizerManager._validate_one_request``. Main process.

    Raises:
        ValueError: a claim is longer than a response of this server can be; SGLang makes a 400 of it.
    """
    if asked(obj.sampling_params).claim is None or config.room is None:
        original(manager, obj, input_ids)
        return
    reason = config.room.lacking(len(input_ids))
    if reason:
        raise ValueError(reason)
    original(manager, obj, input_ids[:1])  # its other checks; this one token is never too long


def never_cut(original: Callable[..., str | None], req: Any, *args: Any) -> str | None:
    """AROUND ``validate_input_length``. Scheduler process: `check_claim` has looked at the length of a claim."""
    custom = req.sampling_params.custom_params
    claimed = isinstance(custom, dict) and CLAIM_KEY in custom
    return None if claimed else original(req, *args)
