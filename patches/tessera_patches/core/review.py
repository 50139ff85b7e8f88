"""What differs between SGLang's releases where seams lie, and the record of what somebody reviewed."""

from collections.abc import Iterable, Iterator
from difflib import unified_diff
from pathlib import Path

from tessera_patches import inventory
from tessera_patches.core import lock, source
from tessera_patches.core.lock import Entry, Shape, Shapes
from tessera_patches.core.seam import Guard, Seam


def differences(version: str, installed: str, root: Path) -> Iterator[str]:
    """Unified diffs of all that is locked and differs between the installed SGLang and another, then missing callers.

    What a release's wheel does not have is left out: kernels are in one of their own.

    Args:
        version: the other version.
        installed: the installed version.
        root: the folder of the other's source.
    """
    seams = inventory.at(version)
    for path, guard in _comparable(seams, root).items():
        if _entry(path, guard, None) != _entry(path, guard, root):
            yield diff(path, guard, (installed, None), (version, root))
    for seam in seams:
        if _has_package(root, seam.target):
            yield from lock.missing_callers(seam, root)


def differing_seams(version: str, root: Path) -> tuple[int, int]:
    """The number of seams whose source in ``root`` differs from the installed one, and the number of those compared."""
    compared = [seam for seam in inventory.at(version) if _has_package(root, seam.target)]
    wrong = [seam for seam in compared if lock.mismatches(seam, _installed(seam), root)]
    return len(wrong), len(compared)


def _installed(seam: Seam) -> dict[str, Entry]:
    return {path: entry for path, guard in seam.guards.items() if (entry := _entry(path, guard, None)) is not None}


def _comparable(seams: Iterable[Seam], root: Path) -> dict[str, Guard]:
    return {path: guard for path, guard in lock.guards(seams).items() if _has_package(root, path)}


def _has_package(root: Path, path: str) -> bool:
    return (root / path.partition(".")[0]).is_dir()


def _entry(path: str, guard: Guard, root: Path | None) -> Entry | None:
    try:
        return lock.entry_of(path, guard, root)
    except source.SourceMissing:
        return None


def diff(path: str, guard: Guard, before: tuple[str, Path | None], after: tuple[str, Path | None]) -> str:
    """A unified diff of one locked function, class or variable, or of what sets a field.

    Args:
        path: its dotted path.
        guard: how it is locked.
        before: version and folder of the source; where it is not there it counts as empty.
        after: the same of the later version.
    """
    (old, old_root), (new, new_root) = before, after
    lines = unified_diff(
        _lines(path, guard, old_root), _lines(path, guard, new_root), f"{old} {path}", f"{new} {path}", lineterm=""
    )
    return "\n".join(lines)


def _lines(path: str, guard: Guard, root: Path | None) -> list[str]:
    try:
        if guard is Guard.FIELD:
            return [f"set by {setter}" for setter in source.setters(path, root)]
        return source.lines(path, root)
    except source.SourceMissing:
        return []


def unreviewed(shapes: Shapes) -> dict[str, Entry]:
    """What has a shape in the installed SGLang that nobody has reviewed in any version, by dotted path."""
    found = {path: _entry(path, guard, None) for path, guard in lock.guards().items()}
    return {
        path: entry
        for path, entry in found.items()
        if entry is not None and all(one["shape"] != entry for one in shapes.get(path, ()))
    }


def missing_targets() -> list[str]:
    """One sentence for each thing that the installed SGLang does not have, though a seam needs it."""
    found: list[str] = []
    for path, guard in lock.guards().items():
        try:
            lock.entry_of(path, guard)
        except source.SourceMissing as error:
            found.append(str(error))
    return found


def last_reviewed(shapes: list[Shape], installed: str) -> str | None:
    """The last version other than the installed one of which there is a shape."""
    versions = {version for shape in shapes for version in shape["versions"]} - {installed}
    return max(versions, key=lock.release_numbers, default=None)


def record(shapes: Shapes, version: str, reviewed: Iterable[str]) -> Shapes:
    """The lock file with the installed version in it: shapes that it has already, and those that are new and reviewed.

    Args:
        shapes: the lock file as it was. What no seam of any version needs any more is left out.
        version: the installed version.
        reviewed: dotted paths whose new shape somebody has read.
    """
    new = unreviewed(shapes)
    wanted = set(reviewed)
    own = lock.guards()
    made: Shapes = {}
    for path in _guarded_in_any(version, shapes):
        recorded = shapes.get(path, [])
        entry = _entry(path, own[path], None) if path in own else None
        if entry is not None and (path not in new or path in wanted):
            recorded = _with(recorded, version, entry)
        if recorded:
            made[path] = recorded
    return made


def _guarded_in_any(version: str, shapes: Shapes) -> list[str]:
    """What a seam of this version, or of another in the lock file, needs: dotted paths, once each."""
    versions = {version, *(other for recorded in shapes.values() for shape in recorded for other in shape["versions"])}
    ordered = sorted(versions, key=lock.release_numbers)
    return list(dict.fromkeys(path for each in ordered for path in lock.guards(inventory.at(each))))


def _with(shapes: list[Shape], version: str, entry: Entry) -> list[Shape]:
    """These shapes with this version in one alone; a shape that is of no version any more is left out."""
    others = [Shape(versions=[v for v in one["versions"] if v != version], shape=one["shape"]) for one in shapes]
    if not any(one["shape"] == entry for one in others):
        others.append(Shape(versions=[], shape=entry))
    for one in others:
        if one["shape"] == entry:
            one["versions"] = sorted([*one["versions"], version], key=lock.release_numbers)
    return [one for one in others if one["versions"]]
