"""See what one of SGLang's methods returns, where nothing passes it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class Tap:
    """Watches a method of an object for a while; of None there is nothing to see. A generator costs thrice as much.

    Args:
        owner: the object, or None.
        name: of the method.
        on: called with each output.

    Attributes:
        last: the last output.
    """

    __slots__ = ("_name", "_on", "_original", "_owner", "last")

    def __init__(self, owner: Any, name: str, on: Callable[[Any], None] | None = None) -> None:
        self._owner, self._name, self._on = owner, name, on
        self._original: Any = None
        self.last: Any = None

    def __enter__(self) -> Self:
        if self._owner is not None:
            self._original = getattr(self._owner, self._name)
            setattr(self._owner, self._name, self._watched)
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            delattr(self._owner, self._name)

    def _watched(self, *args: Any, **kwargs: Any) -> Any:
        output = self._original(*args, **kwargs)
        self.last = getattr(output, "logits_output", output)
        if self._on is not None:
            self._on(self.last)
        return output
