"""Which rank of several this process is."""

from __future__ import annotations

from typing import Any

import torch


def is_first(runner: Any) -> bool:
    """Whether this rank keeps the rows: the first of those that compute attention together."""
    return bool(runner.ps.attn_tp_rank == 0)


def replica(runner: Any) -> int:
    """The replica of ``--dp-size``."""
    return runner.ps.dp_rank or 0


def on_any(found: bool, runner: Any) -> bool:
    """Whether something holds on any tensor-parallel rank; waits for all of them."""
    flag = torch.tensor([found], dtype=torch.int32)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=runner.tp_group.cpu_group)
    return bool(flag.item())
