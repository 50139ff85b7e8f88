"""What is refused with some versions of SGLang alone, from all tables of refusals."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from tessera import refusal as shared
from tessera.refusal import Refusal
from tessera.versions import within
from tessera_patches import support
from tessera_testing.imports import modules

_STATE = " beside Mamba or linear-attention state"
_ROWS, _INJECTION = "`--enable-return-hidden-states`", "`--enable-injection`"
FEATURES = {
    "tessera.rows.refusals.REFUSALS": _ROWS,
    "tessera.rows.refusals.BESIDE_STATE": _ROWS + _STATE,
    "tessera.rows.refusals.ENVIRONMENT": _ROWS,
    "tessera.capabilities.inject.refusals.REFUSALS": _INJECTION,
    "tessera.capabilities.inject.refusals.BESIDE_STATE": _INJECTION + _STATE,
    "tessera.capabilities.inject.refusals.ENVIRONMENT": _INJECTION,
    "tessera.tilespec.refusals.REFUSALS": "`--tile-spec`",
    "tessera.tilespec.refusals.ENVIRONMENT": "`--tile-spec`",
}
"""By table, what its options cannot be combined with."""


class OfSome(NamedTuple):
    """A refusal that is of some versions alone.

    Attributes:
        option: what is refused.
        features: what it is refused with; "" where nothing else matters.
        versions: with which it is refused, or of those that have it, as a specifier.
        refuses: whether ``versions`` are those with which it is refused.
        why: the reason.
    """

    option: str
    features: str
    versions: str
    refuses: bool
    why: str

    def refused(self, version: str) -> bool:
        """Whether it is refused with a version."""
        return within(version, self.versions) is self.refuses


def tables() -> Iterator[tuple[str, tuple[Refusal, ...]]]:
    """Every table of refusals, by its dotted name: all tuples of them in modules that are called ``refusals``."""
    for name in modules():
        if name.endswith(".refusals"):
            for own, value in vars(import_module(name)).items():
                refusals = isinstance(value, tuple) and any(isinstance(one, Refusal) for one in value)
                if refusals and own not in vars(shared):
                    yield f"{name}.{own}", value


def of_some() -> list[OfSome]:
    """One for each option and reason; a table that has no entry in `FEATURES` is a ``KeyError``."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, refusals in tables():
        for one in refusals:
            if one.versions:
                found.setdefault((one.option, one.versions, one.why), []).append(FEATURES[name])
    return [OfSome(option, " and ".join(own), versions, True, why) for (option, versions, why), own in found.items()]


def of_features() -> list[OfSome]:
    """The same of what asks for features that some versions alone have."""
    return [OfSome(support.OPTIONS[name], "", versions, False, "") for name, versions in support.VERSIONS.items()]


def to_try(version: str) -> tuple[list[str], list[str]]:
    """What the versions that somebody wrote down refuse with another version, and what they allow."""
    every = [*of_features(), *of_some()]
    refused, allowed = ([one for one in every if one.refused(version) is wanted] for wanted in (True, False))
    return [_line(one) for one in refused], [_line(one) for one in allowed]


def _line(one: OfSome) -> str:
    beside = f" with {one.features}" if one.features else ""
    return f"{one.option}{beside} ({'refused' if one.refuses else 'there'}: {one.versions})"
