"""SGLang's batches of requests (``ScheduleBatch``, ``ForwardBatch``)."""

from __future__ import annotations

from typing import Any

import torch


def rows_of(batch: Any) -> torch.Tensor:
    """Each request's row in the slot map, ``[bs]`` int64."""
    rows: torch.Tensor = batch.req_pool_indices
    return rows
