"""The page docs/reference/seams.md: every place where Tessera changes SGLang."""

from __future__ import annotations

from tessera.cli.seams import feature
from tessera_patches.core.seam import Guard, Phase, Runs, Seam
from tessera_patches.inventory import DECLARED

_INTRODUCTION = """\
<!-- Generated: python -m tessera_testing.page_tables. A test compares. -->
# Seams

Every place where Tessera changes SGLang. Each is compared with the lock file's entry for the installed SGLang before
anything is served; any difference ends the start. A test looks for such changes in our code, and compares what it finds
with this list.

```shell
tessera seams list
tessera seams diff 0.5.24
```

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
| value | A field, an environment variable or a function of torch gets another value, for good or for a block. |
| object | Something is added to or removed from an object in one of SGLang's modules; or a signal gets our handler. |
| tensor | The function gets a subclass of `torch.Tensor`, for which one of its operations does something else. |
| operator | The torch operator that the function calls is ours. |

"called by" is when a hook must have been called, as counts of calls show; a server in which it was not ends. Where
nothing stands there it depends on requests, options, the model or the device, and the start relies on what the lock
file says of callers, which call the function or hand it on. `Engine.generate` and `Engine.async_generate` have none in
SGLang: users call them; Python calls `ServerArgs.__post_init__`. Functions that SGLang's registry hooks are counted
(`tessera doctor --url` shows it); nothing else is.

A handler also sets fields of objects that SGLang hands to it, or rewrites what they hold. Those are named under "guard"
("sets"), and the lock file has what else sets them.

The last column says which SGLang versions need a seam, and what our code does otherwise in some.

| target in `sglang` | how | process | feature | called by | guard | why | unnecessary when | versions |
|---|---|---|---|---|---|---|---|---|"""


def page() -> str:
    """The page."""
    where = {
        Phase.CPU: "every process without a GPU, at load",
        Phase.LOAD: "every process, at load",
        Phase.MAIN: "main process, once the options are known",
        Phase.SCHEDULER: "scheduler processes",
    }
    rows = [
        f"| `{seam.target.removeprefix('sglang.')}` | {seam.hook} | {where[seam.phase]} | {feature(seam)} "
        f"| {'' if seam.runs is Runs.ON_DEMAND else seam.runs} | {_guards(seam)} | {seam.why} | {seam.remove_when} "
        f"| {_versions(seam)} |"
        for seam in DECLARED
    ]
    return "\n".join([_INTRODUCTION, *rows]) + "\n"


def _versions(seam: Seam) -> str:
    moved = f", moved: {_last((seam.moved,), 9)}: {seam.moved_why}" if seam.moved else ""
    return f"{seam.versions or 'all'}{f': {seam.differs}' if seam.differs else moved}"


def _guards(seam: Seam) -> str:
    own = {
        Guard.PARAMETERS: "parameters",
        Guard.BODY: "parameters and body",
        Guard.FIELD: "what sets it",
    }[seam.guard]
    callers = (", readers" if seam.guard is Guard.FIELD else ", callers") if seam.callers else ""
    relied = f"; bodies of {_last(seam.relied, 1)}" if seam.relied else ""
    return f"{own}{callers}{relied}" + (f"; sets {_last(seam.writes, 2)}" if seam.writes else "")


def _last(paths: tuple[str, ...], parts: int) -> str:
    split = [path.partition("; ") for path in paths]
    named = [(".".join(name.split(".")[-parts:]), versions) for name, _, versions in split]
    return ", ".join(f"`{name}`" + (f" ({versions})" if versions else "") for name, versions in named)
