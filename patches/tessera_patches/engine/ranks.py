"""Which rank of several this process is."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.model_executor.forward_batch_info import PPProxyTensors
from sglang.srt.runtime_context import get_parallel

if TYPE_CHECKING:
    from sglang.srt.distributed.parallel_state import GroupCoordinator
    from sglang.srt.distributed.parallel_state_wrapper import ParallelState
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner, ModelRunnerOutput
    from sglang.srt.runtime_context import ParallelContext

if find_spec("sglang.srt.distributed.parallel_state_wrapper"):  # up to 0.5.20 a model runner knows them

    def is_first(runner: ModelRunner) -> bool:
        """Whether this rank is the first of those that compute attention together."""
        ranks: ParallelState = runner.ps
        return bool(ranks.attn_tp_rank == 0)

    def replica(runner: ModelRunner) -> int:
        """The replica of ``--dp-size``; with ``--enable-dp-attention``, the rank that has requests of its own."""
        ranks: ParallelState = runner.ps
        return ranks.dp_rank or 0

else:

    def is_first(runner: ModelRunner) -> bool:
        """Whether this rank is the first of those that compute attention together."""
        ranks: ParallelContext = get_parallel()
        return bool(ranks.attn_tp_rank == 0)

    def replica(runner: ModelRunner) -> int:
        """The replica of ``--dp-size``; with ``--enable-dp-attention``, the rank that has requests of its own."""
        ranks: ParallelContext = get_parallel()
        return int((ranks.dp_rank or 0) * ranks.attn_dp_size + ranks.attn_dp_rank)


def is_last_stage(runner: ModelRunner) -> bool:
    """Whether this rank is of the last stage of ``--pp-size``: it computes the last layer's states."""
    stages: GroupCoordinator = runner.pp_group
    return bool(stages.is_last_rank)


def keeps_rows(runner: ModelRunner) -> bool:
    """Whether this rank keeps rows: of those that compute attention together, the first of the last stage."""
    return is_first(runner) and is_last_stage(runner)


def has_stages(runner: ModelRunner) -> bool:
    """Whether the layers are split over several stages."""
    stages: GroupCoordinator = runner.pp_group
    return bool(stages.world_size > 1)


def forward_through_stages(runner: ModelRunner, forward_batch: ForwardBatch) -> None:
    """A forward of the whole model where every stage calls this: each waits for the states of the one before it."""
    stages: GroupCoordinator = runner.pp_group
    states = None if stages.is_first_rank else PPProxyTensors(stages.recv_tensor_dict())
    output: ModelRunnerOutput = runner.forward(forward_batch, pp_proxy_tensors=states)
    if not stages.is_last_rank:
        computed: PPProxyTensors = output.logits_output
        stages.send_tensor_dict(computed.tensors)


def tp_rank() -> int:
    """Which of the tensor-parallel ranks this is."""
    group: GroupCoordinator = get_tp_group()
    return int(group.rank_in_group)


def tp_size() -> int:
    """How many tensor-parallel ranks there are."""
    group: GroupCoordinator = get_tp_group()
    return int(group.world_size)


def broadcast_object(value: Any = None) -> Any:
    """What the first tensor-parallel rank calls this with; the others wait for it."""
    group: GroupCoordinator = get_tp_group()
    return group.broadcast_object(value)


def broadcast(tensor: torch.Tensor) -> None:
    """Copy the first tensor-parallel rank's tensor into that of each other."""
    group: GroupCoordinator = get_tp_group()
    group.broadcast(tensor, src=0)


def on_any(found: bool) -> bool:
    """Whether something holds on any of the ranks that compute attention together; waits for all of them."""
    flag: torch.Tensor = torch.tensor([found], dtype=torch.int32)
    ranks: ParallelContext = get_parallel()
    group: GroupCoordinator = ranks.attn_tp_group
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    return bool(flag.item())
