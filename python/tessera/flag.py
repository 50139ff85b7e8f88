"""How an option is declared: a field of a dataclass, with what ``--help`` says and how its value is read."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def says(meaning: str, parse: Callable[[str], Any] | None = None, metavar: str | None = None) -> dict[str, Any]:
    """What ``--help`` says of a field, and how its value is read; without ``parse`` it is a switch."""
    return {"help": meaning, "parse": parse, "metavar": metavar}


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
