"""The lock file: what each seam's target looked like when somebody reviewed it, in every supported SGLang version."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from tessera import versions
from tessera_patches import support
from tessera_patches.core import source
from tessera_patches.core.seam import Guard, Seam
from tessera_patches.inventory import SEAMS

PATH = Path(__file__).parents[1] / "lock.json"


class Entry(TypedDict, total=False):
    """What is locked for one target: ``set_by`` for a field alone, ``body`` alone for a module's variable."""

    parameters: list[str]
    is_async: bool
    body: str
    set_by: list[str]


class Shape(TypedDict):
    """One accepted shape of a target, and the versions in which it was reviewed."""

    versions: list[str]
    shape: Entry


Shapes = dict[str, list[Shape]]
"""The shapes of each dotted path; no version is in two of them."""


class VersionUnsupported(Exception):
    """The lock file has no shapes for the installed SGLang."""


def installed_version() -> str:
    """The version of SGLang. Raises `VersionUnsupported` if it is not installed."""
    found = versions.installed()
    if found is None:
        raise VersionUnsupported(f"SGLang is not installed; run: pip install 'sglang=={support.DEFAULT}'")
    return found


def read() -> Shapes:
    """The accepted shapes of each target, by dotted path."""
    shapes: Shapes = json.loads(PATH.read_text())
    return shapes


def write(shapes: Shapes) -> None:
    """Write the file, one shape a line."""
    targets = (
        f"{json.dumps(path)}: [\n  " + ",\n  ".join(map(json.dumps, found)) + "\n ]" for path, found in shapes.items()
    )
    PATH.write_text("{\n " + ",\n ".join(targets) + "\n}\n")


def supported_versions() -> list[str]:
    """The SGLang versions that are in the lock file, oldest first."""
    found = {version for shapes in read().values() for shape in shapes for version in shape["versions"]}
    return sorted(found, key=release_numbers)


def release_numbers(sglang_version: str) -> tuple[int, ...]:
    """The numbers of a version, to order versions by; parts that are not numbers are left out."""
    return tuple(int(part) for part in sglang_version.split(".") if part.isdigit())


def load(sglang_version: str) -> dict[str, Entry]:
    """What was reviewed in one version, by target.

    Raises:
        VersionUnsupported: nothing was.
    """
    entries = {
        path: shape["shape"]
        for path, shapes in read().items()
        for shape in shapes
        if sglang_version in shape["versions"]
    }
    if not entries:
        raise VersionUnsupported(
            f"SGLang {sglang_version} is not supported (supported: {', '.join(supported_versions())}); "
            f"install a supported one, or set TESSERA_DISABLE=1 for the stock server"
        )
    return entries


def guards(seams: Iterable[Seam] | None = None) -> dict[str, Guard]:
    """What these seams need, by dotted path. One seam may need the body of what another only calls.

    Args:
        seams: the seams; None for those of the installed version.
    """
    found: dict[str, Guard] = {}
    for seam in SEAMS if seams is None else seams:
        for path, guard in seam.guards.items():
            if found.get(path) is not Guard.BODY:
                found[path] = guard
    return found


def current(seam: Seam, root: Path | None = None) -> dict[str, Entry]:
    """What the seam's target, and what it relies on besides, look like now; by dotted path.

    Args:
        seam: the seam.
        root: folder of another SGLang than the installed one.

    Raises:
        SourceMissing: one of them is gone.
    """
    return {path: entry_of(path, guard, root) for path, guard in seam.guards.items()}


def entry_of(path: str, guard: Guard, root: Path | None = None) -> Entry:
    """What the source behind one dotted path looks like now."""
    if guard is Guard.FIELD:
        return Entry(set_by=source.setters(path, root))
    definition = source.statement(path, root)
    if isinstance(definition, source.Variable):
        return Entry(body=source.body_hash(definition))
    entry = Entry(parameters=source.parameters(definition), is_async=source.is_async(definition))
    if guard is Guard.BODY:
        entry["body"] = source.body_hash(definition)
    return entry


def mismatches(seam: Seam, locked: dict[str, Entry], root: Path | None = None) -> list[str]:
    """Why this seam does not fit the installed SGLang, or the one in ``root``; empty where it does."""
    try:
        found = current(seam, root)
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
    return differing + missing_callers(seam, root)


def missing_callers(seam: Seam, root: Path | None = None) -> list[str]:
    """One sentence for each caller that is gone, or no longer calls the target, or reads the field."""
    return [line for caller in seam.callers if (line := _why_missing(caller, seam, root))]


def _why_missing(caller: str, seam: Seam, root: Path | None) -> str | None:
    of_field = seam.guard is Guard.FIELD
    try:
        definition = source.find(caller, root)
    except source.SourceMissing as error:
        return str(error)
    name = seam.target.rsplit(".", 1)[1]
    if of_field:
        reaches = source.reads(definition, name)
    else:
        reaches = source.calls(definition, name) or source.passes_on(definition, name)
    return None if reaches else f"{caller} no longer {'reads' if of_field else 'calls'} {seam.target}"
