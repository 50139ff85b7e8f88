"""SGLang's options, as it resolved them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang.srt.runtime_context import get_context

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import RuntimeContext
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2


def options(owner: TokenizerManager | ModelRunner | EAGLEWorkerV2 | EagleDraftWorker) -> ServerArgs:
    """The ``ServerArgs`` of a ``TokenizerManager``, a ``ModelRunner`` or a worker, with what SGLang decided itself."""
    return resolved(owner.server_args)


def resolved(args: ServerArgs) -> ServerArgs:
    """The same, of options that SGLang hands to a function."""
    return args


def samples_drafts(worker: EAGLEWorkerV2 | EagleDraftWorker) -> bool:
    """Whether draft tokens are sampled, and accepted by rejection sampling."""
    args: ServerArgs = options(worker)
    sampled: bool = args.speculative_use_rejection_sampling
    return sampled


@contextmanager
def with_draft_tokens(runner: ModelRunner, tokens: int) -> Iterator[None]:
    """Override ``--speculative-num-draft-tokens`` for a model runner, in a ``with`` block."""
    args: ServerArgs = options(runner)
    before = args.speculative_num_draft_tokens
    args.override("tessera", speculative_num_draft_tokens=tokens)
    try:
        yield
    finally:
        args.override("tessera", speculative_num_draft_tokens=before)


def overrides_log() -> list[Any]:
    """SGLang's record of overridden options. Each override appends to it."""
    context: RuntimeContext = get_context()
    log: list[Any] = context._overrides_log
    return log
