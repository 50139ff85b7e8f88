"""SGLang's options: its ``ServerArgs``, and what it resolves them to.

Up to 0.5.19 their constructor resolves them, and writes into them. Since 0.5.20 it keeps them as they were given,
``resolve_once`` decides the rest beside them, and that is read through a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang.srt.arg_groups import overrides
from sglang.srt.runtime_context import get_context, get_server_args, get_spec
from sglang.srt.server_args import ServerArgs

from tessera import sampling
from tessera.server_options import ModelFacts
from tessera_patches.core import calls
from tessera_patches.core.defaults import defaults
from tessera_patches.engine.model import facts

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import RuntimeContext
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2


_OWN_WIDTHS = not hasattr(ServerArgs, "override")
"""Whether graphs of draft-extends have the width of their adaptive state."""


def later_parameters() -> list[str]:
    """Which of `tessera.sampling.LATER` this SGLang has."""
    # No process that only reads options imports what samples.
    from sglang.srt.sampling.sampling_params import SamplingParams

    return [name for name in sampling.LATER if hasattr(SamplingParams, name)]


class Resolved:
    """What SGLang has decided about options: each has the name of its field in ``ServerArgs``."""

    def __init__(
        self,
        values: ServerArgs,
        backends: Callable[[], tuple[str | None, str | None]],
        configuration: Callable[[], ModelConfig | None],
    ) -> None:
        self._values, self._backends, self._configuration = values, backends, configuration

    def __getattr__(self, name: str) -> Any:
        return getattr(self._values, name)

    @property
    def attention_backends(self) -> tuple[str | None, str | None]:
        """The attention backends of prefills and of decodes."""
        return self._backends()

    @property
    def model(self) -> ModelFacts | None:
        """The model that they name; None for a placeholder that nothing serves."""
        configuration = self._configuration()
        return None if configuration is None else facts(configuration)


if hasattr(ServerArgs, "resolve_once"):  # since 0.5.20

    def resolved(args: ServerArgs) -> Resolved:
        """What SGLang has decided about options that it hands to a function."""
        values: ServerArgs = overrides.resolving_view(args)
        path: str = str(values.model_path)
        is_placeholder = path.lower() in ("none", "dummy")
        return Resolved(
            values,
            lambda: overrides.attention_backends_of(values),
            lambda: None if is_placeholder else overrides.model_config_of(args),
        )

    def override(args: ServerArgs, **fields: Any) -> None:
        """Change what options are resolved to, before anything is started with them."""
        overrides.declare_resolution(args, "tessera", **fields)

else:

    def resolved(args: ServerArgs) -> Resolved:
        """What SGLang has decided about options that it hands to a function."""

        def backends() -> tuple[str | None, str | None]:
            prefill, decode = args.get_attention_backends()
            return prefill, decode

        return Resolved(args, backends, lambda: getattr(args, "model_config", None))

    def override(args: ServerArgs, **fields: Any) -> None:
        """Change what options are resolved to, before anything is started with them."""
        args.override("tessera", **fields)


def is_resolved(args: ServerArgs) -> bool:
    """Whether SGLang has resolved them, or begun to.

    Since 0.5.20 another field says so.
    """
    return ("_resolution_finished" if hasattr(ServerArgs, "resolve_once") else "_resolved_overrides") in vars(args)


def own_options() -> Resolved:
    """The options of this process's server."""
    return resolved(get_server_args())


def return_states(args: ServerArgs) -> None:
    """Turn ``--enable-return-hidden-states`` on, before options are resolved."""
    args.enable_return_hidden_states = True


def changed(args: ServerArgs) -> dict[str, Any]:
    """Options that have another value than the default, as they were given, by the names of their fields."""
    stock = defaults(args)
    return {name: value for name in stock if (value := getattr(args, name)) != stock[name]}


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

    Since 0.5.18 SGLang does so itself, and this does nothing.
    """
    if _OWN_WIDTHS:
        yield
        return
    args: ServerArgs = runner.server_args
    before = args.speculative_num_draft_tokens
    args.override("tessera", speculative_num_draft_tokens=tokens)
    calls.count(with_draft_tokens)
    try:
        yield
    finally:
        args.override("tessera", speculative_num_draft_tokens=before)


def overrides_log() -> list[Any]:
    """SGLang's record of overridden options. Each override appends to it."""
    context: RuntimeContext = get_context()
    log: list[Any] = context._overrides_log
    return log
