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
        choices=("list", "lock"),
        default="list",
        help="list: each with its reason (default); lock: write the lock file of the installed SGLang, to be reviewed "
        "before it is committed",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the list, or write the lock file and print its path."""
    print(_lock() if options.action == "lock" else _lines())
    return 0


def _lock() -> Path:
    from tessera_patches.core import lock

    return lock.write()


def _lines() -> str:
    from tessera_patches.inventory import SEAMS

    return "\n".join(
        f"{seam.phase:9s} {seam.hook:8s} {feature(seam):16s} {seam.guard:10s} {seam.target}\n"
        f"    {seam.why} Unnecessary when: {seam.remove_when}"
        for seam in SEAMS
    )


def feature(seam: Seam) -> str:
    """The feature that installs it, as the list and the page show it."""
    from tessera_patches.core.seam import Phase

    return seam.feature or ("any feature" if seam.phase is Phase.SCHEDULER else "always")
