"""A warning when Triton compiles a kernel while requests are served, which all requests wait for."""

import logging
from collections.abc import Callable
from typing import Any

from triton import knobs

from tessera_patches.core.changes import replace_method

logger = logging.getLogger(__name__)


def warn() -> None:
    """Warn from now on. A listener that is already installed is still called."""
    replace_method(warn, knobs.compilation, "listener", listener(knobs.compilation.listener))


def listener(before: Callable[..., None] | None) -> Callable[..., None]:
    """A ``triton.knobs.CompilationListener`` that logs a warning, and calls the listener ``before``."""

    def on_compilation(*, metadata: dict[str, Any], times: Any, cache_hit: bool, **rest: Any) -> None:
        if before is not None:
            before(metadata=metadata, times=times, cache_hit=cache_hit, **rest)
        done = "loaded from Triton's cache" if cache_hit else "compiled"
        name = metadata.get("name", "a kernel")
        logger.warning("tessera: %s was %s while requests waited: %.0f ms", name, done, times.total / 1000)

    return on_compilation
