"""Changes of SGLang's objects for which its hook registry has no hook.

No other code changes them in another way; `tests/contract/test_changes.py` compares each call with the inventory.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")

Mixin: Any = object
"""Base of a class that is combined with one of SGLang's, whose methods it may call by ``super()``."""


def change_class(instance: Any, kind: type) -> None:
    """Change the class of an object to a subclass of its class.

    Raises:
        TypeError: ``kind`` is no subclass of it.
    """
    if not issubclass(kind, type(instance)):
        raise TypeError(f"a {type(instance).__name__} cannot become a {kind.__name__}, which does not extend it")
    instance.__class__ = kind


def replace_method(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method of one object.

    Raises:
        AttributeError: the object has no such method.
    """
    getattr(owner, name)
    setattr(owner, name, replacement)


class TemporaryFields:
    """A context manager that sets fields of an object, and restores them at its end.

    A step enters several, and a generator's takes three times as long.

    Args:
        owner: the object.
        values: the temporary values by field name.

    Raises:
        AttributeError: the object has no such field.
    """

    __slots__ = ("_before", "_owner", "_values")

    def __init__(self, owner: Any, **values: Any) -> None:
        self._owner, self._values = owner, values

    def __enter__(self) -> None:
        owner, values = self._owner, self._values
        self._before = {name: getattr(owner, name) for name in values}
        for name, value in values.items():
            setattr(owner, name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            setattr(self._owner, name, value)


class Tap:
    """A context manager that observes what a method of an object returns.

    A generator would take three times as long.

    Args:
        owner: the object; with None nothing is observed.
        name: the method's name.
        on: called with each output, or with its ``logits_output`` where it has one.

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
            setattr(self._owner, self._name, self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            delattr(self._owner, self._name)

    def _seen(self, *args: Any, **kwargs: Any) -> Any:
        output = self._original(*args, **kwargs)
        self.last = getattr(output, "logits_output", output)
        if self._on is not None:
            self._on(self.last)
        return output


def set_environment(name: str, value: str) -> None:
    """Set one of SGLang's environment variables, for this process and its children."""
    os.environ[name] = value


def filter_log(logger: str, text: str) -> None:
    """Drop the lines of a logger that contain a text.

    Args:
        logger: the logger's name, which is its module's.
        text: part of the dropped lines.
    """
    logging.getLogger(logger).addFilter(lambda record: text not in record.getMessage())


def truncate(items: list[Any], length: int) -> None:
    """Remove what SGLang appended to a list after it had this length (in place)."""
    del items[length:]


def move_to_front(items: list[Any], since: int) -> None:
    """Move what was appended to a list after it had this length to the front (in place)."""
    items[:] = items[since:] + items[:since]


def before_signal(number: signal.Signals, act: Callable[[], None]) -> None:
    """Act before this process's handler of a signal, if it has one. Does nothing outside the main thread."""
    stock = signal.getsignal(number)
    if not callable(stock) or threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, frame: FrameType | None) -> None:
        act()
        stock(number, frame)

    signal.signal(number, handle)


def with_alarm(seconds: float, act: Callable[[], None], call: Callable[[], T]) -> T:
    """Call something, and act in the middle of it if it takes longer. For the main thread alone.

    A process has one such timer and one handler of it. What somebody else had set is theirs again afterwards: their
    timer goes on where it stopped. No Python code can set a handler that is not of Python; it is ignored from then on.
    """
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, lambda *_: act())
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # of its own, as ``act`` may raise in the one above
        signal.signal(signal.SIGALRM, signal.SIG_IGN if before is None else before)
        signal.setitimer(signal.ITIMER_REAL, *left)
