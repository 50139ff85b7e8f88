"""Declares a command-line option as a field of a dataclass."""

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Any


def option(default: Any, meaning: str, parse: Callable[[str], Any] | None = None, metavar: str | None = None) -> Any:
    """A field that is a command-line option.

    Args:
        default: its value where it is not given.
        meaning: what ``--help`` shows.
        parse: how its value is read; None makes it a switch.
        metavar: what stands for its value in ``--help``.
    """
    return field(default=default, metadata={"help": meaning, "parse": parse, "metavar": metavar})


def positive(text: str) -> float:
    """Read a finite number above 0."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a finite number above 0")


def count(text: str) -> int:
    """Read an integer of 1 or more."""
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: an integer of 1 or more")
