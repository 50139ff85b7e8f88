"""SGLang's workers of speculative decoding, and their graphs."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

import torch
from sglang.srt.model_executor.runner_utils.buffers import DecodeInputBuffers
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EagleDraftInputBuffers
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner

if TYPE_CHECKING:
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
    from sglang.srt.model_executor.runner.shape_key import ShapeKey
    from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EagleDraftExtendInputBuffers
    from sglang.srt.speculative.eagle_info import EagleDraftExtendInput
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2

SELECTS_ROWS = "select_index" in signature(EAGLEDraftExtendCudaGraphRunner.execute).parameters
"""Whether graphs of draft-extends compute logits of last accepted rows alone, and return them without padding."""

if SELECTS_ROWS:

    def graph_rows(drafts: EagleDraftExtendInput) -> torch.Tensor | None:
        """The rows of last accepted tokens that a graph selects, ``[bs]`` int64; None outside of graphs."""
        rows: torch.Tensor | None = drafts.select_index
        return rows

else:

    def graph_rows(drafts: EagleDraftExtendInput) -> torch.Tensor | None:
        """None: graphs select no rows."""
        return None


if hasattr(BaseSpecWorker, "last_shared_read_runner"):  # since 0.5.18

    def clear_read_event(worker: EAGLEWorkerV2) -> None:
        """Forget the event of the last forward that the scheduler waits for before it writes what forwards read."""
        runner: ModelRunner = worker.last_shared_read_runner
        runner.shared_read_done_event = None

else:

    def clear_read_event(worker: EAGLEWorkerV2) -> None:
        """Forget the event of the last forward that the scheduler waits for before it writes what forwards read."""
        runner: ModelRunner = worker.war_fastpath_runner
        runner.war_fastpath_read_done_event = None


def worker_runner(worker: TpModelWorker) -> ModelRunner:
    """What runs a worker's model."""
    return worker.model_runner


def target_runner(worker: EAGLEWorkerV2 | EagleDraftWorker) -> ModelRunner:
    """What runs the model for which a worker, or its draft worker, drafts."""
    target: TpModelWorker = worker.target_worker
    return worker_runner(target)


def graph_key(graphs: DecodeCudaGraphRunner, size: int) -> ShapeKey:
    """What a graph is replayed by, of its batch size, or for verifications in part of its tokens."""
    return graphs._make_graph_key(size)


def input_buffers(graphs: DecodeCudaGraphRunner) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Where graphs read token ids, and where states ``[tokens, H]``, which not all of them do."""
    buffers: DecodeInputBuffers | EagleDraftInputBuffers | EagleDraftExtendInputBuffers = graphs.buffers
    if isinstance(buffers, DecodeInputBuffers):
        return [buffers.input_ids], None
    if isinstance(buffers, EagleDraftInputBuffers):
        drafts: EagleDraftInputBuffers = buffers
        return [drafts.input_ids, drafts.topk_index], drafts.hidden_states
    extends: EagleDraftExtendInputBuffers = buffers
    return [extends.input_ids], extends.hidden_states
