"""Times what `tessera.metrics` counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from tessera import config


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Time a block, of `tessera.metrics.WORK` or `tessera.metrics.ROUTES`, that ends without an error."""
    begin = perf_counter()
    yield
    if config.metrics is not None:
        config.metrics.took(what, perf_counter() - begin)
