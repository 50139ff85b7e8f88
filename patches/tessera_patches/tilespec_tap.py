"""See what a method of SGLang's returns, where nothing hands it on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class Tap:
    """Sees each output of a function.

    Attributes:
        last: the last one.
        on: called with each.
    """

    def __init__(self) -> None:
        self.last: Any = None
        self.on: Any = None


@contextlib.contextmanager
def tapped(owner: Any, name: str) -> Iterator[Tap]:
    """Watch a method of an object for a while; of None there is nothing to see."""
    tap = Tap()
    if owner is None:
        yield tap
        return
    original = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        tap.last = getattr(output, "logits_output", output)
        if tap.on is not None:
            tap.on(tap.last)
        return output

    setattr(owner, name, watched)
    try:
        yield tap
    finally:
        delattr(owner, name)
