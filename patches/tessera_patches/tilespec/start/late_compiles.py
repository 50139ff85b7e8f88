"""Say when Triton compiles a kernel while the server serves: every request waits for it meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from triton import knobs

logger = logging.getLogger(__name__)


def warn() -> None:
    """From now on. Whoever listens to Triton already is told as before."""
    knobs.compilation.listener = listener(knobs.compilation.listener)


def listener(before: Callable[..., None] | None) -> Callable[..., None]:
    """What Triton tells of each compilation; see ``triton.knobs.CompilationListener``."""

    def told(*, metadata: dict[str, Any], times: Any, cache_hit: bool, **rest: Any) -> None:
        if before is not None:
            before(metadata=metadata, times=times, cache_hit=cache_hit, **rest)
        done = "loaded from Triton's cache" if cache_hit else "compiled"
        name = metadata.get("name", "a kernel")
        logger.warning("tessera: %s was %s while requests waited: %.0f ms", name, done, times.total / 1000)

    return told
