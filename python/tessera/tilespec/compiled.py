"""Functions over small arrays that the scheduler's thread calls every few steps, compiled by Numba, as SGLang has it.

A call of NumPy takes 3 to 8 µs there, whatever the array's size, for by then the processor's caches hold other things:
a look at all options was 45 of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    from numba import njit
except ImportError:  # where traces are read, not in a server: SGLang requires it
    logging.getLogger(__name__).warning("numba is not installed, so this takes a hundred times as long")

    def njit(signature: str, *, cache: bool = False) -> Callable[[Any], Any]:  # noqa: ARG001 - as Numba's
        """Leave a function as it is."""
        return lambda function: function


Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(signature: str) -> Callable[[Function], Function]:
    """Compile a function, for arguments of exactly these types: others are a TypeError, not a second of compiling.

    It is kept on disk beside the module, or in the user's cache; where neither can be written each start takes a second
    more.

    Compiled code does not look at the bounds of arrays: who calls it has checked shapes, and what becomes an index.

    Args:
        signature: in Numba's notation, where ``[:, ::1]`` is a contiguous matrix.
    """

    def compile_(function: Function) -> Function:
        try:
            return cast("Function", njit(signature, cache=True)(function))
        except RuntimeError:  # "cannot cache function: no locator available"
            return cast("Function", njit(signature)(function))

    return compile_
