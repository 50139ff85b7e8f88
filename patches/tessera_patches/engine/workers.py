"""SGLang's workers of speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2


def clear_read_event(worker: EAGLEWorkerV2) -> None:
    """Forget the event of the last forward that the scheduler waits for before it writes what forwards read."""
    runner: ModelRunner = worker.war_fastpath_runner
    runner.war_fastpath_read_done_event = None
