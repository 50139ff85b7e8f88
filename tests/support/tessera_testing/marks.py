"""Marks of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tessera_patches import support
from tessera_patches.core import versions

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet


def only_in_full(*values: str) -> list[ParameterSet]:
    """Values of a parameter that `make test` leaves out: it has each pair with another parameter's elsewhere."""
    return [pytest.param(value, marks=pytest.mark.full, id=value) for value in values]


def absent(feature: str) -> bool:
    """Whether the installed SGLang does not have a feature."""
    return feature in support.absent(versions.installed() or support.DEFAULT)


def needs(feature: str) -> pytest.MarkDecorator:
    """Mark of a test that runs with versions of SGLang that have a feature."""
    return pytest.mark.skipif(absent(feature), reason=f"this SGLang does not have {feature}")


def where_supported(feature: str, *sets: tuple[object, ...]) -> list[ParameterSet]:
    """Sets of parameters for versions of SGLang that have a feature."""
    return [pytest.param(*values, marks=needs(feature)) for values in sets]
