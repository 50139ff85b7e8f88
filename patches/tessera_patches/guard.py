"""What would end the scheduler, and can be known there alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tessera.admission import CLAIM_KEY

TokenLogprobs = tuple[list[Any], list[Any]]


def with_tensors(
    original: Callable[..., TokenLogprobs], logprobs: torch.Tensor, *args: Any, **kw: Any
) -> TokenLogprobs:
    """AROUND ``get_token_ids_logprobs``. Its rows become lists by ``tolist``: one without ids must be a tensor, too."""
    values, ids = original(logprobs, *args, **kw)
    if any(isinstance(value, torch.Tensor) for value in values):
        values = [value if isinstance(value, torch.Tensor) else logprobs.new_empty(0) for value in values]
    return values, ids


def check_length(original: Callable[..., str | None], req: Any, *args: Any, **kw: Any) -> str | None:
    """AROUND ``validate_input_length``; what it returns is the message of a 400.

    The length of a claim was checked in the main process, and SGLang must not cut it.
    """
    if not req.origin_input_ids:
        return "the prompt has no tokens: a text must give at least one"
    custom = req.sampling_params.custom_params
    claimed = isinstance(custom, dict) and CLAIM_KEY in custom
    return None if claimed else original(req, *args, **kw)
