"""Marks of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tessera import versions
from tessera_patches import support
from tessera_testing.starts import HOST_CACHE

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet


def only_in_full(*values: str) -> list[ParameterSet]:
    """Values of a parameter in `make test-all` only. Of combinations, `make test` has each pair in some test."""
    return [pytest.param(value, marks=pytest.mark.full, id=value) for value in values]


def is_installed(specifier: str) -> bool:
    """Whether the installed SGLang is one of these versions, such as ``<0.5.20``."""
    return versions.within(versions.installed() or support.DEFAULT, specifier)


def absent(feature: str) -> bool:
    """Whether the installed SGLang does not have a feature."""
    return feature in support.absent(versions.installed() or support.DEFAULT)


def host_cache_options(parameter: str) -> tuple[str, ...]:
    """Options of a server whose evicted prefixes the host's memory keeps, where a fixture's parameter is ``host``."""
    if parameter != "host":
        return ()
    if absent("host_cache"):
        pytest.skip("this SGLang does not have host_cache")
    return HOST_CACHE


def needs(feature: str) -> pytest.MarkDecorator:
    """Mark of a test that runs with versions of SGLang that have a feature."""
    return pytest.mark.skipif(absent(feature), reason=f"this SGLang does not have {feature}")


def where_supported(feature: str, *sets: tuple[object, ...]) -> list[ParameterSet]:
    """Sets of parameters for versions of SGLang that have a feature."""
    return [pytest.param(*values, marks=needs(feature)) for values in sets]
