"""Changes of SGLang's objects for which its hook registry has no hook.

No other code changes them in another way; `tests/contract/test_changes.py` compares each call with the inventory.
Each is counted for its seam, which ``by``, the seam's handler, names; a handler of several seams has ``place``, the end
of a target. What is made with FastAPI's own functions is counted by `tessera_patches.core.calls.count`.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeVar

from tessera_patches.core import calls

T = TypeVar("T")
Handler = Callable[..., Any]
"""What makes a change, as `tessera_patches.core.seam.Seam.handler` names it."""

Mixin: Any = object
"""Base of a class that is combined with one of SGLang's, whose methods it may call by ``super()``."""


def change_class(by: Handler, instance: Any, kind: type) -> None:
    """Change the class of an object to a subclass of its class, and count the object.

    Raises:
        TypeError: ``kind`` is no subclass of it.
    """
    if not issubclass(kind, type(instance)):
        raise TypeError(f"a {type(instance).__name__} cannot become a {kind.__name__}, which does not extend it")
    instance.__class__ = kind
    calls.count(by)


def replace_method(by: Handler, owner: Any, name: str, replacement: Callable[..., Any], place: str = "") -> None:
    """Replace a method of one object, and count its calls.

    Raises:
        AttributeError: the object has no such method.
    """
    getattr(owner, name)
    counting = calls.counting(replacement, by, place)
    setattr(owner, name, staticmethod(counting) if isinstance(replacement, staticmethod) else counting)


def put_back(owner: Any, name: str, original: Callable[..., Any]) -> None:
    """Put back what `replace_method` replaced; nothing is counted from here on."""
    setattr(owner, name, original)


class TemporaryFields:
    """A context manager that sets fields of an object, and restores them at its end. Each is counted when it is set.

    A step enters several, and a generator's takes three times as long.

    Args:
        by: the handler; a field that one of our classes adds has no seam.
        owner: the object.
        values: the temporary values by field name.

    Raises:
        AttributeError: the object has no such field.
    """

    __slots__ = ("_before", "_by", "_owner", "_values")

    def __init__(self, by: Handler, owner: Any, **values: Any) -> None:
        self._by, self._owner, self._values = by, owner, values

    def __enter__(self) -> None:
        owner, values = self._owner, self._values
        self._before = {name: getattr(owner, name) for name in values}
        for name, value in values.items():
            setattr(owner, name, value)
            calls.count(self._by, name)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            setattr(self._owner, name, value)


class Tap:
    """A context manager that observes what a method of an object returns, and counts its calls.

    A generator would take three times as long.

    Args:
        by: the handler; the place is the method's name.
        owner: the object; with None nothing is observed.
        name: the method's name.
        on: called with each output, or with its ``logits_output`` where it has one.

    Attributes:
        last: the last output.
    """

    __slots__ = ("_index", "_name", "_on", "_original", "_owner", "last")

    def __init__(self, by: Handler, owner: Any, name: str, on: Callable[[Any], None] | None = None) -> None:
        self._index = calls.index_of(by, name)
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
        calls.add(self._index)
        output = self._original(*args, **kwargs)
        self.last = getattr(output, "logits_output", output)
        if self._on is not None:
            self._on(self.last)
        return output


def set_environment(by: Handler, name: str, value: str) -> None:
    """Set one of SGLang's environment variables, for this process and its children."""
    os.environ[name] = value
    calls.count(by, name)


def filter_log(by: Handler, logger: str, text: str, place: str = "") -> None:
    """Drop the lines of a logger that contain a text.

    Args:
        by: the handler.
        logger: the logger's name, which is its module's.
        text: part of the dropped lines.
        place: the end of the target.
    """
    logging.getLogger(logger).addFilter(lambda record: text not in record.getMessage())
    calls.count(by, place)


def truncate(by: Handler, items: list[Any], length: int) -> None:
    """Remove what SGLang appended to a list after it had this length (in place)."""
    del items[length:]
    calls.count(by)


def move_to_front(by: Handler, items: list[Any], since: int) -> None:
    """Move what was appended to a list after it had this length to the front (in place)."""
    items[:] = items[since:] + items[:since]
    calls.count(by)


def before_signal(by: Handler, number: signal.Signals, act: Callable[[], None], place: str = "") -> None:
    """Act before this process's handler of a signal, if it has one. Does nothing outside the main thread."""
    stock = signal.getsignal(number)
    if not callable(stock) or threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, frame: FrameType | None) -> None:
        act()
        stock(number, frame)

    signal.signal(number, handle)
    calls.count(by, place)


def with_alarm(by: Handler, seconds: float, act: Callable[[], None], call: Callable[[], T]) -> T:
    """Call something, and act in the middle of it if it takes longer. For the main thread alone.

    A process has one such timer and one handler of it. What somebody else had set is theirs again afterwards: their
    timer goes on where it stopped. No Python code can set a handler that is not of Python; it is ignored from then on.
    """
    calls.count(by)
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
