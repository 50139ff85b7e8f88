"""The lock file of a SGLang version: what each seam's target looked like when somebody reviewed it."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from tessera_patches.core import source
from tessera_patches.core.seam import Guard, Seam
from tessera_patches.inventory import SEAMS

LOCKS = Path(__file__).parents[1] / "locks"


class Entry(TypedDict, total=False):
    """What is locked for one target: ``set_by`` for a field alone, ``body`` alone for a module's variable."""

    parameters: list[str]
    is_async: bool
    body: str
    set_by: list[str]


class VersionUnsupported(Exception):
    """The installed SGLang has no lock file."""


def installed_version() -> str:
    """Raises `VersionUnsupported` where SGLang is not installed."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        raise VersionUnsupported("SGLang is not installed; run: pip install 'sglang==0.5.17'") from None


def supported_versions() -> list[str]:
    """The SGLang versions that have a lock file."""
    return sorted(path.stem for path in LOCKS.glob("*.json"))


def load(sglang_version: str) -> dict[str, Entry]:
    """The lock of one version, by target.

    Raises:
        VersionUnsupported: there is none.
    """
    path = LOCKS / f"{sglang_version}.json"
    if not path.is_file():
        raise VersionUnsupported(
            f"SGLang {sglang_version} is not supported (supported: {', '.join(supported_versions())}); "
            f"install a supported one, or set TESSERA_DISABLE=1 for the stock server"
        )
    entries: dict[str, Entry] = json.loads(path.read_text())
    return entries


def current(seam: Seam) -> dict[str, Entry]:
    """What the seam's target, and what it relies on besides, look like in the installed SGLang; by dotted path.

    Raises:
        SourceMissing: one of them is gone.
    """
    return {path: _entry(path, guard) for path, guard in seam.guards.items()}


def _entry(path: str, guard: Guard) -> Entry:
    if guard is Guard.FIELD:
        return Entry(set_by=source.setters(path))
    definition = source.statement(path)
    if isinstance(definition, source.Variable):
        return Entry(body=source.body_hash(definition))
    entry = Entry(parameters=source.parameters(definition), is_async=source.is_async(definition))
    if guard is Guard.BODY:
        entry["body"] = source.body_hash(definition)
    return entry


def mismatches(seam: Seam, locked: dict[str, Entry]) -> list[str]:
    """Why this seam does not fit the installed SGLang; empty where it does."""
    try:
        found = current(seam)
        silent = [caller for caller in seam.callers if not _reaches(caller, seam)]
    except source.SourceMissing as error:
        return [str(error)]
    unlocked = [f"{path} is not in the lock file; run: tessera seams lock" for path in found if path not in locked]
    if unlocked:
        return unlocked
    differing = [
        f"{path}: {key} was {locked[path].get(key)!s:.200}, is {value!s:.200}"
        for path, entry in found.items()
        for key, value in entry.items()
        if locked[path].get(key) != value
    ]
    doing = "reads" if seam.guard is Guard.FIELD else "calls"
    return differing + [f"{caller} no longer {doing} {seam.target}" for caller in silent]


def _reaches(caller: str, seam: Seam) -> bool:
    reaches = source.reads if seam.guard is Guard.FIELD else source.calls
    return reaches(source.find(caller), seam.target.rsplit(".", 1)[1])


def write() -> Path:
    """Write the lock file of the installed version; to be reviewed before it is committed."""
    path = LOCKS / f"{installed_version()}.json"
    entries: dict[str, Entry] = {}
    for seam in SEAMS:
        for target, entry in current(seam).items():  # one seam may need the body of what another only calls
            entries[target] = {**entries.get(target, {}), **entry}
    path.write_text(json.dumps(entries, indent=1) + "\n")
    return path
