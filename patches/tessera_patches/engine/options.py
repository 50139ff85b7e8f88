"""SGLang's options: its ``ServerArgs``, and what it resolves them to.

Up to 0.5.19 their constructor resolves them, and writes into them. Since 0.5.20 it keeps them as they were given,
``resolve_once`` decides the rest beside them, and that is read through a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang.srt.arg_groups import overrides
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.server_args import ServerArgs

from tessera import sampling

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import RuntimeContext
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2


RESOLVES_LATER = hasattr(ServerArgs, "resolve_once")
"""Whether the constructor leaves that to ``resolve_once``."""
_RESOLVED = "_resolution_finished" if RESOLVES_LATER else "_resolved_overrides"
OWN_WIDTHS = not hasattr(ServerArgs, "override")
"""Whether graphs of draft-extends have the width of their adaptive state."""


def later_parameters() -> list[str]:
    """Which of `tessera.sampling.LATER` this SGLang has."""
    # No process that only reads options imports what samples.
    from sglang.srt.sampling.sampling_params import SamplingParams

    return [name for name in sampling.LATER if hasattr(SamplingParams, name)]


class Resolved:
    """What options are resolved to, by the names that they have where they are written into."""

    def __init__(self, args: Any) -> None:
        self._args = args
        self._view: ServerArgs = overrides.resolving_view(args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    @property
    def model_config(self) -> Any:
        """SGLang's ``ModelConfig``; None for a placeholder instead of a path."""
        path: str = str(self._view.model_path)
        return None if path.lower() in ("none", "dummy") else overrides.model_config_of(self._args)

    def get_attention_backends(self) -> tuple[str | None, str | None]:
        """Those of prefills and of decodes."""
        prefill, decode = overrides.attention_backends_of(self._view)
        return prefill, decode


if RESOLVES_LATER:

    def resolved(args: ServerArgs) -> Any:
        """What SGLang has decided about options that it hands to a function."""
        return Resolved(args)

    def override(args: ServerArgs, **fields: Any) -> None:
        """Change what options are resolved to, before anything is started with them."""
        overrides.declare_resolution(args, "tessera", **fields)

else:

    def resolved(args: ServerArgs) -> Any:
        """What SGLang has decided about options that it hands to a function."""
        return args

    def override(args: ServerArgs, **fields: Any) -> None:
        """Change what options are resolved to, before anything is started with them."""
        args.override("tessera", **fields)


def is_resolved(args: ServerArgs) -> bool:
    """Whether SGLang has resolved them, or begun to."""
    return _RESOLVED in vars(args)


def options(owner: TokenizerManager | ModelRunner | EAGLEWorkerV2 | EagleDraftWorker) -> Any:
    """The options of a ``TokenizerManager``, a ``ModelRunner`` or a worker, with what SGLang decided itself."""
    return resolved(owner.server_args)


def page_size(owner: TokenizerManager | EAGLEWorkerV2) -> int:
    """How many KV slots are given out together."""
    args: ServerArgs = options(owner)
    size: int = args.page_size
    return size


def sampling_defaults(owner: ServerArgs | TokenizerManager) -> Any:
    """``--preferred-sampling-params``, which SGLang adds to those of each request; None without any."""
    return owner.preferred_sampling_params


def samples_drafts() -> bool:
    """Whether draft tokens are sampled, and accepted by rejection sampling."""
    speculative: ServerArgs = get_spec()  # has those options that are about speculative decoding
    return bool(speculative.speculative_use_rejection_sampling)


def accept_thresholds() -> tuple[float, float]:
    """``--speculative-accept-threshold-single`` and ``--speculative-accept-threshold-acc``."""
    speculative: ServerArgs = get_spec()
    return speculative.speculative_accept_threshold_single, speculative.speculative_accept_threshold_acc


@contextmanager
def with_draft_tokens(runner: ModelRunner, tokens: int) -> Iterator[None]:
    """Override ``--speculative-num-draft-tokens`` for a model runner, in a ``with`` block.

    Since 0.5.18 SGLang does so itself.
    """
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
