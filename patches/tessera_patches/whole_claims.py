"""Claims are run whole or not at all: SGLang's limits are those of prompts that are answered, and may cut one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera import config
from tessera.admission import asked


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
