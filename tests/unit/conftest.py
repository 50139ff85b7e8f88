"""What makes these tests quick: they start no engine, and most of their time is imports."""

from __future__ import annotations

import gc


def pytest_collection() -> None:
    """Imports make a million objects that stay: to look through them again and again for garbage takes a second."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is collected, without looking at what was imported."""
    gc.freeze()
    gc.enable()
