"""Which features each SGLang version has: what it does not have is refused at start, by name."""

import tomllib
from pathlib import Path
from typing import NamedTuple

from tessera.versions import within

DEFAULT, OTHER = "0.5.23", "0.5.17"
"""The version that ``pip install '.[engine]'`` and ``make venv`` install, and the one of ``make test-other``.

This line is the only place: setup.py, Makefile and .ci read it.
"""

VERSIONS: dict[str, str] = dict.fromkeys(("detokenizers", "dp_attention", "host_cache", "cpu_host_cache"), ">=0.5.23")
"""By feature, the versions that have it; features that are not here are in all."""

OPTIONS = {
    "rows": "--enable-return-hidden-states",
    "speculative_rows": "--enable-return-hidden-states with --speculative-algorithm",
    "fingerprints": "--toploc-verification",
    "inject": "--enable-injection",
    "tilespec": "--tile-spec",
    "detokenizers": "--detokenizer-worker-num above 1",
    "dp_attention": "--enable-dp-attention",
    "host_cache": "--enable-hierarchical-cache",
    "cpu_host_cache": "--enable-hierarchical-cache without a GPU",
}
"""Every feature that a version may lack, and what asks for it."""


class Release(NamedTuple):
    """What a release of SGLang needs.

    Attributes:
        python: the versions of Python.
        torch: the one version of torch.
    """

    python: str
    torch: str


def releases() -> dict[str, Release]:
    """What each supported version of SGLang needs, by version."""
    found = tomllib.loads(Path(__file__).with_name("releases.toml").read_text())
    return {version: Release(**needs) for version, needs in found.items()}


def absent(sglang_version: str) -> set[str]:
    """The features that a version does not have."""
    return {feature for feature, specifier in VERSIONS.items() if not within(sglang_version, specifier)}


def refused(features: list[str], sglang_version: str, locked: list[str]) -> list[str]:
    """One sentence for each feature that a version does not have.

    Args:
        features: names of what is asked for.
        sglang_version: the installed version.
        locked: all versions that have a lock file.
    """
    return [
        f"{OPTIONS[feature]} needs SGLang {' or '.join(_having(feature, locked))}; {sglang_version} is installed"
        for feature in features
        if feature in absent(sglang_version)
    ]


def _having(feature: str, locked: list[str]) -> list[str]:
    return [one for one in locked if feature not in absent(one)]
