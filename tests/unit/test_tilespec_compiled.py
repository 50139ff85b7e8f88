"""What is compiled takes its types and no others, also where nothing can be kept on disk."""

from __future__ import annotations

from typing import Any

import numba.core.caching
import numpy as np
import pytest

from tessera.tilespec.compiled import compiled


def total(values: Any) -> float:
    """Of a vector."""
    found = 0.0
    for value in values:
        found += value
    return found


@pytest.mark.parametrize("writable", [True, False])
def test_exactly_these_types(writable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another layout would be compiled while requests wait, and integers would be cut off or not, as it happens."""
    if not writable:
        monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    sum_up = compiled("float64(float64[::1])")(total)
    assert sum_up(np.arange(5.0)) == 10
    for wrong in (np.arange(5), np.arange(10.0)[::2], np.zeros((2, 2)), np.arange(5, dtype=np.float32)):
        with pytest.raises(TypeError, match=r"No matching definition"):
            sum_up(wrong)
