"""SGLang's batches of requests (``ScheduleBatch``, ``ForwardBatch``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


def rows_of(batch: ScheduleBatch | ForwardBatch) -> torch.Tensor:
    """Each request's row in the slot map, ``[bs]`` int64."""
    rows: torch.Tensor = batch.req_pool_indices
    return rows


def prefix_lens(batch: ScheduleBatch) -> list[int]:
    """How many tokens of each request are in the KV cache before a prefill, ``[bs]``."""
    lens: list[int] = batch.prefix_lens
    return lens


def extend_lens(batch: ScheduleBatch) -> list[int]:
    """How many tokens of each request a prefill computes, ``[bs]``."""
    lens: list[int] = batch.extend_lens
    return lens
