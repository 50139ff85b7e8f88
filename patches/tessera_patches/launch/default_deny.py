"""SGLang's options that are refused with any feature, if they are set, and those that nobody has looked at."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tessera.capabilities.registry import CAPABILITIES
from tessera.config import Settings
from tessera.refusal import field_of
from tessera.rows import refusals as rows
from tessera.tilespec import refusals as tilespec
from tessera_patches.engine.options import changed

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

_FILE = Path(__file__).with_name("options.toml")
_SWITCHED = [capability for capability in CAPABILITIES if capability.switch]
FEATURES = {
    "rows": rows.SWITCH,
    **{capability.name: capability.switch for capability in _SWITCHED},
    "tilespec": "--tile-spec",
}
_TABLES = {
    "rows": rows.REFUSALS,
    **{capability.name: capability.refusals for capability in _SWITCHED},
    "tilespec": tilespec.REFUSALS,
}
_UNKNOWN = "nobody has looked at what it does there"


class Lists(NamedTuple):
    """What is known of the fields of ``ServerArgs``, of all supported versions.

    Attributes:
        allowed: go with every feature, whatever their value.
        by_feature: for each feature, what its own table refuses, and what goes with it while others refuse it.
        refused: the reason why each is refused with any feature.
    """

    allowed: list[str]
    by_feature: Mapping[str, set[str]]
    refused: Mapping[str, str]

    def unknown(self, names: Iterable[str], features: Iterable[str]) -> list[str]:
        """The fields that are in no list for one of the features."""
        known = {*self.allowed, *self.refused}.union(set[str].intersection(*(self.by_feature[one] for one in features)))
        return [name for name in names if name not in known]


def lists() -> Lists:
    """Read the file, and the tables of the features."""
    groups = tomllib.loads(_FILE.read_text())
    return Lists(
        [name for names in groups["allowed"].values() for name in names],
        {
            feature: {field_of(refusal.option) for refusal in table}.union(groups["goes_with"][feature])
            for feature, table in _TABLES.items()
        },
        {name: why for why, names in groups["refused"].items() for name in names},
    )


def refused(args: ServerArgs, settings: Settings) -> list[str]:
    """One sentence for each option that is refused with any feature, or unknown, if one is on that requests ask for.

    Args:
        args: as they were given: what SGLang decides of its own is not the operator's wish.
        settings: what is on.
    """
    features = [name for name in FEATURES if getattr(settings, name)]
    if not features:
        return []
    known, given = lists(), changed(args)
    on = ", ".join(FEATURES[name] for name in features)
    whys = {**known.refused, **dict.fromkeys(known.unknown(given, features), _UNKNOWN)}
    return [
        f"--{name.replace('_', '-')} cannot be combined with {on}: {why}" for name, why in whys.items() if name in given
    ]
