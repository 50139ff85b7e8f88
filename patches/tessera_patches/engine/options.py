"""SGLang's options: its ``ServerArgs``, and what it resolves them to.

Up to 0.5.19 their constructor resolves them, and writes into them. Since 0.5.20 it keeps them as they were given,
``resolve_once`` decides the rest beside them, and that is read through a view.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from sglang.srt.arg_groups import overrides
from sglang.srt.runtime_context import get_context, get_server_args, get_spec
from sglang.srt.server_args import ServerArgs

from tessera import sampling
from tessera.server_options import ModelFacts
from tessera_patches.engine.model import facts

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
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


if RESOLVES_LATER:

    def _values(args: ServerArgs) -> ServerArgs:
        """What options are resolved to, by their names."""
        return overrides.resolving_view(args)

    def _backends(args: ServerArgs) -> tuple[str | None, str | None]:
        """The attention backends of prefills and of decodes."""
        prefill, decode = overrides.attention_backends_of(overrides.resolving_view(args))
        return prefill, decode

    def _configuration(args: ServerArgs) -> ModelConfig | None:
        """None for a placeholder instead of a path."""
        values: ServerArgs = _values(args)
        path: str = str(values.model_path)
        return None if path.lower() in ("none", "dummy") else overrides.model_config_of(args)

    def override(args: ServerArgs, **fields: Any) -> None:
        """Change what options are resolved to, before anything is started with them."""
        overrides.declare_resolution(args, "tessera", **fields)

else:

    def _values(args: ServerArgs) -> ServerArgs:
        """What options are resolved to, by their names."""
        return args

    def _backends(args: ServerArgs) -> tuple[str | None, str | None]:
        """The attention backends of prefills and of decodes."""
        prefill, decode = args.get_attention_backends()
        return prefill, decode

    def _configuration(args: ServerArgs) -> ModelConfig | None:
        """None for a placeholder instead of a path."""
        return getattr(args, "model_config", None)

    def override(args: ServerArgs, **fields: Any) -> None:
        """Change what options are resolved to, before anything is started with them."""
        args.override("tessera", **fields)


class Resolved:
    """What SGLang has decided about options: each has the name of its field in ``ServerArgs``."""

    def __init__(self, args: ServerArgs) -> None:
        self._args = args
        self._resolved = _values(args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resolved, name)

    @property
    def attention_backends(self) -> tuple[str | None, str | None]:
        """Those of prefills and of decodes."""
        return _backends(self._args)

    @cached_property
    def model(self) -> ModelFacts | None:
        """The model that they name; None for a placeholder that nothing serves."""
        model = _configuration(self._args)
        return None if model is None else facts(model)


def resolved(args: ServerArgs) -> Resolved:
    """What SGLang has decided about options that it hands to a function."""
    return Resolved(args)


def own_options() -> Resolved:
    """Those of this process's server."""
    return resolved(get_server_args())


def return_states(args: ServerArgs) -> None:
    """Turn ``--enable-return-hidden-states`` on, before options are resolved."""
    args.enable_return_hidden_states = True


def changed(args: ServerArgs) -> dict[str, Any]:
    """Options that were given, with another value than the default's, by the names of their fields."""
    declared: Any = msgspec.structs if isinstance(args, msgspec.Struct) else dataclasses
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    defaults = {
        field.name: field.default_factory() if field.default in missing else field.default
        for field in declared.fields(args)
        if field.default not in missing or field.default_factory not in missing
    }
    given = {name: getattr(args, name) for name in defaults}
    return {name: value for name, value in given.items() if value != defaults[name]}


def is_resolved(args: ServerArgs) -> bool:
    """Whether SGLang has resolved them, or begun to."""
    return _RESOLVED in vars(args)


def options(owner: TokenizerManager | ModelRunner | EAGLEWorkerV2 | EagleDraftWorker) -> Resolved:
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
    args: ServerArgs = runner.server_args
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
