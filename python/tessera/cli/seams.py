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
        f"{seam.phase:9s} {seam.hook:8s} {_feature(seam):16s} {seam.guard:10s} {seam.target}\n"
        f"    {seam.why} Unnecessary when: {seam.remove_when}"
        for seam in SEAMS
    )


def page() -> str:
    """The page docs/reference/seams.md."""
    from tessera_patches.core.seam import Phase
    from tessera_patches.inventory import SEAMS

    where = {
        Phase.CPU: "every process without a GPU, at load",
        Phase.LOAD: "every process, at load",
        Phase.MAIN: "main process, once the options are known",
        Phase.SCHEDULER: "scheduler processes",
    }
    rows = [
        f"| `{seam.target.removeprefix('sglang.')}` | {seam.hook} | {where[seam.phase]} | {_feature(seam)} "
        f"| {_guards(seam)} | {seam.why} | {seam.remove_when} |"
        for seam in SEAMS
    ]
    return "\n".join([_INTRODUCTION, *rows])


def _feature(seam: Seam) -> str:
    from tessera_patches.core.seam import Phase

    return seam.feature or ("any feature" if seam.phase is Phase.SCHEDULER else "always")


def _guards(seam: Seam) -> str:
    from tessera_patches.core.seam import Guard

    own = {
        Guard.PARAMETERS: "parameters",
        Guard.BODY: "parameters and body",
        Guard.FIELD: "what sets it",
    }[seam.guard]
    callers = (", readers" if seam.guard is Guard.FIELD else ", callers") if seam.callers else ""
    relied = f"; bodies of {_last(seam.relied, 1)}" if seam.relied else ""
    return f"{own}{callers}{relied}" + (f"; sets {_last(seam.writes, 2)}" if seam.writes else "")


def _last(paths: tuple[str, ...], parts: int) -> str:
    return ", ".join(f"`{'.'.join(path.split('.')[-parts:])}`" for path in paths)


_INTRODUCTION = """\
<!-- Generated: tessera seams docs > docs/reference/seams.md. A test compares. -->
# Seams

Every place where Tessera changes SGLang. Each is compared with the lock file of the installed SGLang version before
anything is served; any difference ends the start. A test looks for such changes in our code, and compares what it finds
with this list.

`TESSERA_DISABLE=1` gives the stock server: none of these is made, but for those of machines without a GPU, where SGLang
could not be imported. Without `--enable-return-hidden-states` only those marked `always` are: those of the options in
every process, where nothing calls them but the start, the others in the main process, to answer a request for an
embedding with a 400 that names the flag.

| how | what happens |
|---|---|
| before, after, around, replace | SGLang's hook registry does it, and is asked afterwards whether it did. |
| method | Some objects get another function for this method, for good or for a block. |
| class | Some objects of this class become objects of a subclass of ours. |
| subclass | SGLang gets objects of a subclass of ours where it would have made its own. |
| value | A field or an environment variable gets another value, for good or for a block. |
| object | An object that a module of SGLang's holds is added to, or taken from. |
| tensor | The function gets a subclass of `torch.Tensor`, for which one of its operations does something else. |
| kernel | The Triton kernel is launched by our function. |
| operator | The torch operator that the function calls is ours. |

A handler also sets fields of objects that SGLang hands to it. Those are named under "guard" ("sets"), and the lock file
has what else sets them.

| target in `sglang` | how | process | feature | guard | why | unnecessary when |
|---|---|---|---|---|---|---|"""
