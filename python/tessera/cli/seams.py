"""``tessera seams``: where Tessera touches SGLang."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera_patches.core.seam import Seam


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("seams", help="print every place where Tessera touches SGLang")
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "lock", "docs"),
        default="list",
        help="list: each with its reason (default); lock: write the lock file of the installed SGLang, to be reviewed "
        "before it is committed; docs: print the page docs/reference/seams.md",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    if options.action == "lock":
        print(_lock())
    else:
        print(page() if options.action == "docs" else _lines())
    return 0


def _lock() -> Path:
    from tessera_patches.core import lock

    return lock.write()


def _lines() -> str:
    from tessera_patches.inventory import SEAMS

    return "\n".join(
        f"{seam.phase:9s} {seam.hook:7s} {_feature(seam):16s} {seam.guard:10s} {seam.target}\n"
        f"    {seam.why} Unnecessary when: {seam.remove_when}"
        for seam in SEAMS
    )


def page() -> str:
    """The page docs/reference/seams.md."""
    from tessera_patches.core.seam import Guard, Phase
    from tessera_patches.inventory import SEAMS

    where = {
        Phase.LOAD: "every process, at load",
        Phase.MAIN: "main process, once the options are known",
        Phase.SCHEDULER: "scheduler processes",
    }
    rows = [
        f"| `{seam.target.removeprefix('sglang.')}` | {seam.hook} | {where[seam.phase]} | {_feature(seam)} "
        f"| {'parameters and body' if seam.guard is Guard.BODY else 'parameters'}"
        f"{', callers' if seam.callers else ''}{_relied(seam.relied)} | {seam.why} | {seam.remove_when} |"
        for seam in SEAMS
    ]
    return "\n".join([_INTRODUCTION, *rows])


def _feature(seam: Seam) -> str:
    from tessera_patches.core.seam import Phase

    return seam.feature or ("any feature" if seam.phase is Phase.SCHEDULER else "always")


def _relied(paths: tuple[str, ...]) -> str:
    names = ", ".join(f"`{path.split('.')[-1]}`" for path in paths)
    return f"; bodies of {names}" if paths else ""


_INTRODUCTION = """\
<!-- Generated: tessera seams docs > docs/reference/seams.md. A test compares. -->
# Seams

Every place where Tessera touches SGLang. Each is compared with the lock file of the installed SGLang version before it
is applied, and SGLang's hook registry is asked afterwards whether it did apply it; any difference ends the start.
`TESSERA_DISABLE=1` gives the stock server: none of these is installed. Without `--enable-return-hidden-states` only
those marked `always` are: those of the options in every process, where nothing calls them but the start, the others in
the main process, to answer a request for an embedding with a 400 that names the flag.

| target in `sglang` | hook | process | feature | guard | why | unnecessary when |
|---|---|---|---|---|---|---|"""
