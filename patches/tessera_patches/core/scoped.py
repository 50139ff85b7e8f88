"""Values for the duration of a ``with`` block, for hooks on SGLang's functions that are called deep inside it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ScopedValue(Generic[T]):
    """A value of this process that is None outside of a block that sets it. Blocks do not nest.

    Attributes:
        value: the value of the current block.
    """

    def __init__(self) -> None:
        self.value: T | None = None

    def set(self, value: T) -> _Block[T]:
        """A context manager in which `value` is this; it is None again afterwards, also after an error."""
        return _Block(self, value)


class _Block(Generic[T]):
    """The context manager of `ScopedValue.set`. A generator would take three times as long, several times a step."""

    __slots__ = ("_scoped", "_value")

    def __init__(self, scoped: ScopedValue[T], value: T) -> None:
        self._scoped, self._value = scoped, value

    def __enter__(self) -> None:
        self._scoped.value = self._value

    def __exit__(self, *_: object) -> None:
        self._scoped.value = None
