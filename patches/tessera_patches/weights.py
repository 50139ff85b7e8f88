"""Weight updates: rows computed with the old weights must never be returned."""

from __future__ import annotations

from typing import Any

from tessera_patches import runtime


def invalidate_rows(result: Any, updater: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER each ``update_weights_from_*``; also after one that failed, which may have changed part of the weights."""
    if runtime.rows is not None:
        runtime.rows.invalidate()
