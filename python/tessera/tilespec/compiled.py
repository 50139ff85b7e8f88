"""Numba for functions over small arrays that the scheduler's thread calls every few steps. SGLang requires Numba.

A NumPy call takes 3 to 8 µs there, whatever the array's size, as its code is no longer in the processor's caches. A
search of all options would need 45 calls.
"""

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
    """Compile a function for arguments of exactly these types; others are a TypeError.

    The result is cached beside the module or in the user's cache folder. If neither is writable, each start takes a
    second longer. Compiled code does not check array bounds: callers check shapes and indices.

    Args:
        signature: in Numba's notation, where ``[:, ::1]`` is a contiguous matrix.
    """

    def compile_(function: Function) -> Function:
        try:
            return cast("Function", njit(signature, cache=True)(function))
        except RuntimeError:  # "cannot cache function: no locator available"
            return cast("Function", njit(signature)(function))

    return compile_
