"""Counts and times what `tessera.metrics` shows; does nothing where metrics are off."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from tessera import config
from tessera.metrics import Counter


def count(counter: Counter, amount: int = 1, value: str = "") -> None:
    """Add to a counter; `value` is that of its label."""
    if config.metrics is not None:
        config.metrics.count(counter, amount, value)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Time a block that ends without an error: a capability's `work`, or the answer of one of its routes."""
    begin = perf_counter()
    yield
    if config.metrics is not None:
        config.metrics.observe_seconds(what, perf_counter() - begin)
