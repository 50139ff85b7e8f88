"""How SGLang's objects are changed where its hook registry has no place for a hook.

Nothing outside of this package changes one in another way: a test compares each call with the inventory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Self

Mixin: Any = object
"""Base of a class that `extended` puts on top of one of SGLang's, whose methods it may call by ``super()``."""


def extended(kind: type, *mixins: type) -> type:
    """A subclass of one of SGLang's classes.

    Args:
        kind: SGLang's.
        mixins: subclasses of `Mixin`; the methods of an earlier one come first. The first one names the class.
    """
    return type(f"{mixins[0].__name__}{kind.__name__}", (*mixins, kind), {})


def change_class(instance: Any, kind: type) -> None:
    """Make an object of SGLang's one of a subclass.

    Raises:
        TypeError: it is no subclass of the object's class.
    """
    if not issubclass(kind, type(instance)):
        raise TypeError(f"a {type(instance).__name__} cannot become a {kind.__name__}, which does not extend it")
    instance.__class__ = kind


def replace_method(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Have an object of SGLang's call another function for a method.

    Raises:
        AttributeError: it has no such method.
    """
    getattr(owner, name)
    setattr(owner, name, replacement)


class Values:
    """A block in which fields of one of SGLang's objects have other values; after it they are as before it.

    Several in each step, and a generator's costs three times as much.

    Args:
        owner: the object.
        values: by name.
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
    """A block in which somebody sees what a method of an object returns; of None there is nothing to see.

    A generator costs three times as much.

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
    """Set one of SGLang's environment variables, for this process and those that it starts."""
    os.environ[name] = value


def leave_out_of_log(logger: str, text: str) -> None:
    """Have a logger of SGLang's leave out lines that contain a text.

    Args:
        logger: its name, which is that of its module.
        text: what they contain.
    """
    logging.getLogger(logger).addFilter(lambda record: text not in record.getMessage())


def cut_list(kept: list[Any], length: int) -> None:
    """Forget what SGLang appended to a list of its own since it had this length."""
    del kept[length:]


def put_first(kept: list[Any], since: int) -> None:
    """Put what was appended to a list of SGLang's since it had this length before what it had."""
    kept[:] = kept[since:] + kept[:since]


def launch_directly(kernel: Any) -> None:
    """Have a Triton kernel of SGLang's launched by our function, which looks less at its arguments."""
    from tessera_kernels.triton.device.launch import (
        hasten,  # with torch, which a process that only loads plugins does not have yet
    )

    hasten(kernel)
