"""SGLang's options that are refused with any feature, if they are set, and those that nobody has looked at."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tessera.capabilities.inject import refusals as injection
from tessera.config import Settings
from tessera.refusal import field_of
from tessera.rows import refusals as rows
from tessera.tilespec import refusals as tilespec

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

_FILE = Path(__file__).with_name("options.toml")
_TABLES = (rows.REFUSALS, injection.REFUSALS, tilespec.REFUSALS)
_FEATURES = {"rows": "--enable-return-hidden-states", "inject": "--enable-injection", "tilespec": "--tile-spec"}
_UNKNOWN = "nobody has looked at what it does there"


class Lists(NamedTuple):
    """What is known of the fields of ``ServerArgs``, of all supported versions.

    Attributes:
        allowed: go with every feature, whatever their value.
        by_feature: in the table of at least one feature, which says where they are refused.
        refused: the reason why each is refused with any feature.
    """

    allowed: list[str]
    by_feature: set[str]
    refused: Mapping[str, str]

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those that are in none of these."""
        return [name for name in names if name not in {*self.allowed, *self.by_feature, *self.refused}]


def lists() -> Lists:
    """Read the file, and the tables of the features."""
    groups = tomllib.loads(_FILE.read_text())
    return Lists(
        [name for names in groups["allowed"].values() for name in names],
        {field_of(refusal.option) for table in _TABLES for refusal in table},
        {name: why for why, names in groups["refused"].items() for name in names},
    )


def refused(args: ServerArgs, settings: Settings) -> list[str]:
    """One sentence for each option that is refused with any feature, or unknown, if one is on that requests ask for.

    Args:
        args: as they were given: what SGLang decides of its own is not the operator's wish.
        settings: what is on.
    """
    on = ", ".join(option for name, option in _FEATURES.items() if getattr(settings, name))
    if not on:
        return []
    known, stock = lists(), defaults(args)
    whys = {**known.refused, **dict.fromkeys(known.unknown(stock), _UNKNOWN)}
    return [
        f"--{name.replace('_', '-')} cannot be combined with {on}: {why}"
        for name, why in whys.items()
        if name in stock and getattr(args, name) != stock[name]
    ]


def defaults(args: ServerArgs) -> dict[str, Any]:
    """What each option is where nobody gives it, by its field; those that must be given are left out."""
    declared: Any = msgspec.structs if isinstance(args, msgspec.Struct) else dataclasses
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    return {
        field.name: field.default_factory() if field.default in missing else field.default
        for field in declared.fields(args)
        if field.default not in missing or field.default_factory not in missing
    }
