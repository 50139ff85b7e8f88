"""What the code of a context hands to SGLang's functions that are called deep inside it and know no worker."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Scoped(Generic[T]):
    """A value of this process, None outside of any context that holds one.

    Contexts do not nest: a draft is made, or captured, one at a time.
    """

    def __init__(self) -> None:
        self.value: T | None = None

    def holding(self, value: T) -> _Held[T]:
        """Hold ``value`` in this context, also where it ends with an error."""
        return _Held(self, value)


class _Held(Generic[T]):
    """A context of `Scoped`; several in each step, and a generator's costs three times as much."""

    __slots__ = ("_scoped", "_value")

    def __init__(self, scoped: Scoped[T], value: T) -> None:
        self._scoped, self._value = scoped, value

    def __enter__(self) -> None:
        self._scoped.value = self._value

    def __exit__(self, *_: object) -> None:
        self._scoped.value = None
