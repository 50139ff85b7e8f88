"""Marks of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet


def only_in_full(*values: str) -> list[ParameterSet]:
    """Values of a parameter that `make test` leaves out: it has each pair with another parameter's elsewhere."""
    return [pytest.param(value, marks=pytest.mark.full, id=value) for value in values]
