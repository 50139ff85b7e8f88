"""SGLang's options, as it resolved them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2


def options(owner: TokenizerManager | ModelRunner | EAGLEWorkerV2) -> ServerArgs:
    """The ``ServerArgs`` of a ``TokenizerManager``, a ``ModelRunner`` or a worker, with what SGLang decided itself."""
    return owner.server_args
