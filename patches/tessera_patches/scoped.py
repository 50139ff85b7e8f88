"""What the code of a context hands to functions of SGLang's that are called deep inside it and know no worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Scoped(Generic[T]):
    """A value of this process, None outside of any context that holds one.

    Contexts do not nest: a draft is made, or captured, one at a time.
    """

    def __init__(self) -> None:
        self.value: T | None = None

    @contextlib.contextmanager
    def holding(self, value: T) -> Iterator[None]:
        """Hold ``value`` in this context, also where it ends with an error."""
        self.value = value
        try:
            yield
        finally:
            self.value = None
