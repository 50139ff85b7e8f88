"""Which rank of several this process is."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from sglang.srt.runtime_context import get_parallel

if TYPE_CHECKING:
    from sglang.srt.distributed.parallel_state import GroupCoordinator
    from sglang.srt.distributed.parallel_state_wrapper import ParallelState
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import ParallelContext

if find_spec("sglang.srt.distributed.parallel_state_wrapper"):  # up to 0.5.20 a model runner knows them

    def is_first(runner: ModelRunner) -> bool:
        """Whether this rank keeps the rows: the first of those that compute attention together."""
        ranks: ParallelState = runner.ps
        return bool(ranks.attn_tp_rank == 0)

    def replica(runner: ModelRunner) -> int:
        """The replica of ``--dp-size``."""
        ranks: ParallelState = runner.ps
        return ranks.dp_rank or 0

    def _group(runner: ModelRunner) -> GroupCoordinator:
        return runner.tp_group

else:

    def is_first(runner: ModelRunner) -> bool:
        """Whether this rank keeps the rows: the first of those that compute attention together."""
        ranks: ParallelContext = get_parallel()
        return bool(ranks.attn_tp_rank == 0)

    def replica(runner: ModelRunner) -> int:
        """The replica of ``--dp-size``."""
        ranks: ParallelContext = get_parallel()
        return ranks.dp_rank or 0

    def _group(runner: ModelRunner) -> GroupCoordinator:
        ranks: ParallelContext = get_parallel()
        return ranks.tp_group


def on_any(found: bool, runner: ModelRunner) -> bool:
    """Whether something holds on any tensor-parallel rank; waits for all of them."""
    flag: torch.Tensor = torch.tensor([found], dtype=torch.int32)
    group: GroupCoordinator = _group(runner)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    return bool(flag.item())
