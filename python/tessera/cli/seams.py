"""``tessera seams``: where Tessera touches SGLang."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera_patches.core.lock import Shapes
    from tessera_patches.core.seam import Seam


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("seams", help="print every place where Tessera touches SGLang")
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(metavar="ACTION")
    actions.add_parser("list", help="each with its reason (default)").set_defaults(run=_list)
    differ = actions.add_parser(
        "diff",
        help="what differs in another SGLang release, downloaded by pip; exit 1 if anything does",
        description="Print each locked function that differs between the installed SGLang and another release, as a "
        "unified diff, and callers that no longer reach a seam. The release is downloaded by pip and not imported.",
    )
    differ.add_argument("version", metavar="VERSION", help="of SGLang, for example 0.5.23")
    differ.set_defaults(run=_diff)
    lock = actions.add_parser(
        "lock",
        help="record the installed SGLang in the lock file, as far as it was reviewed; exit 1 if something was not",
        description="Add the installed SGLang to the lock file: each function whose shape was reviewed in any version, "
        "and what is named as reviewed now. Print what is left as diffs against the version reviewed last, which pip "
        "downloads.",
    )
    reviewed = lock.add_mutually_exclusive_group()
    reviewed.add_argument(
        "--reviewed", nargs="+", default=(), metavar="NAME", help="dotted paths, or their ends, that somebody has read"
    )
    reviewed.add_argument("--all", action="store_true", help="somebody has read every diff")
    lock.set_defaults(run=_lock)


def _list(_: argparse.Namespace) -> int:
    print(_lines())
    return 0


def _diff(options: argparse.Namespace) -> int:
    from tessera_patches.core import lock, review
    from tessera_patches.core.releases import ReleaseMissing, Releases

    with Releases() as releases:
        try:
            root = releases.root(options.version)
        except ReleaseMissing as error:
            return _fail(str(error))
        if root is None:
            return _fail(f"SGLang {options.version} is the installed one")
        found = list(review.differences(options.version, lock.installed_version(), root))
        wrong, compared = review.differing_seams(options.version, root)
    for one in found:
        print(one)
    print(f"{wrong} of {compared} seams differ in SGLang {options.version}")
    return 1 if found else 0


def _lock(options: argparse.Namespace) -> int:
    from tessera_patches.core import lock, review

    shapes, version = lock.read(), lock.installed_version()
    new = review.unreviewed(shapes)
    reviewed = set(new) if options.all else {path for name in options.reviewed for path in _ending(name, new)}
    if unknown := [name for name in options.reviewed if not _ending(name, new)]:
        return _fail(f"not among the new shapes: {', '.join(unknown)}")
    lock.write(review.record(shapes, version, reviewed))
    print(f"{lock.PATH}: {len(lock.guards())} shapes, {len(reviewed)} of them new in SGLang {version}")
    left = [path for path in new if path not in reviewed]
    shown = _show(left, shapes, version) if left else 0
    missing = review.missing_targets()
    return _fail("; ".join(missing)) if missing else shown


def _ending(name: str, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if f".{path}".endswith(f".{name}")]


def _show(paths: list[str], shapes: Shapes, version: str) -> int:
    """Print what nobody has reviewed yet, and fail."""
    from tessera_patches.core import lock, review
    from tessera_patches.core.releases import ReleaseMissing, Releases

    guards = lock.guards()
    with Releases() as releases:
        for path in paths:
            before = review.last_reviewed(shapes.get(path, []), version)
            try:
                root = releases.root(before) if before else releases.empty
            except ReleaseMissing as error:
                return _fail(str(error))
            print(review.diff(path, guards[path], (before or "nothing", root), (version, None)))
    return _fail(f"{len(paths)} new shapes are not recorded: read them, then give their names to --reviewed, or --all")


def _fail(why: str) -> int:
    print(f"tessera seams: {why}", file=sys.stderr)
    return 1


def _lines() -> str:
    from tessera_patches.inventory import SEAMS

    return "\n".join(
        f"{seam.phase:9s} {seam.hook:8s} {feature(seam):16s} {seam.guard:10s} {seam.target}\n"
        f"    {seam.why} Unnecessary when: {seam.remove_when}"
        for seam in SEAMS
    )


def feature(seam: Seam) -> str:
    """The feature that installs the seam, as the list and the page show it."""
    from tessera_patches.core.seam import Phase

    return seam.feature or ("any feature" if seam.phase is Phase.SCHEDULER else "always")
