"""The page docs/reference/seams.md: every place where Tessera changes SGLang."""

from __future__ import annotations

import json
from pathlib import Path

from tessera.cli.seams import feature
from tessera_patches import support
from tessera_patches.core import lock
from tessera_patches.core.seam import Guard, Phase, Runs, Seam
from tessera_patches.inventory import DECLARED, at
from tessera_testing.pages import table
from tessera_testing.version_reach import READS, differing_themselves, reached

_RESULTS = Path(__file__).parents[3] / "benchmarks/results/current"
_ON_CPU, _LATER, _ON_GPU = "2026-11-30-cpu", "2026-12-01-cpu", "2026-12-01-h200"
_NEED_GPU = {"cuda_drafts", "cuda_chains", "cuda_trees", "ragged_graphs", "ragged_triton", "triton_extends"}
"""Of `tessera.config.CONDITIONS`."""
_TESTS = {
    "launch.flags:accept_keywords": "engine_cpu/test_offline_engine.py",
    "launch.flags": "faults/test_unreached.py",
    "launch.server_args": "faults/test_refusals.py",
    "http.invalid": "engine_cpu/test_hostile_requests.py",
    "http.request:check_stock_fields": "engine_cpu/test_requests.py",
    "http.request": "engine_cpu/test_openai.py",
    "http.offline": "engine_cpu/test_offline_engine.py",
    "http.http_server:add_refusals": "engine_cpu/test_requests.py",
    "http.http_server": "engine_cpu/test_schema.py",
    "http.unserved": "engine_cpu/test_routes.py",
    "http.openai": "engine_cpu/test_openai.py",
    "http.records": "engine_cpu/test_records.py",
    "guard.scheduler:with_empty_tensors": "engine_cpu/test_neighbours.py",
    "guard.scheduler": "engine_cpu/test_hostile_requests.py",
    "rows.weights": "engine_cpu/test_rl_loops.py",
    "rows.host": "engine_cpu/test_host_cache.py",
    "tilespec.verify.logits": "contract/test_logits_in_16_bits.py",
    "tilespec.extend.last_rows": "engine_cpu/test_tilespec.py",
    "tilespec.start.late_compiles": "unit/test_launcher.py",
    "tilespec": "gpu/test_tilespec.py",
    "engine.attention": "gpu/test_tilespec.py",
    "inject": "engine_cpu/test_injection.py",
    "tessera_kernels.cpu.delta_rule": "engine_cpu/test_models.py",
    "tessera_kernels.cpu.gated_attention": "engine_cpu/test_models.py",
    "tessera_kernels.cpu:enable": "unit/test_cpu_ops.py",
    "tessera_kernels.cpu": "engine_cpu/test_speculative.py",
    "cpu.kernels": "engine_cpu/test_models.py",
    "cpu.host_cache": "engine_cpu/test_host_cache.py",
}
"""Tests that come to seams of `Runs.ON_DEMAND`, by how the name of the handler begins."""
NO_TEST = "No test: it needs processes that share a GPU's memory."
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
| class | Some objects of this class become objects of a Tessera subclass. |
| subclass | SGLang gets objects of a Tessera subclass where it would have made its own. |
| value | A field, an environment variable or a function of torch gets another value, for good or for a block. |
| object | Something is added to or removed from an object in one of SGLang's modules; or a signal gets our handler. |
| tensor | The function gets a subclass of `torch.Tensor`, for which one of its operations does something else. |
| operator | The torch operator that the function calls is ours. |

Every entry is counted, and `tessera doctor --url` shows it: calls of functions, objects of a class, operations of a
tensor or an operator, and how often a value was set or an object changed. "reached by" is when the count must no longer
be 0, for all servers of the feature or with what is named there; a server in which it still is ends. On demand it
depends on requests, the model or the device, and the test that is named asks for such; the start relies on what the
lock file says of callers, which call the function or hand it on. `Engine.generate` and `Engine.async_generate` have
none in SGLang, for users call them; Python calls `__post_init__`. Counts are a server's: of several schedulers one is
enough, for they run the same code with the same options. A call that torch compiles is not counted, and whether SGLang
reads a value cannot be seen.

A handler also sets fields of objects that SGLang hands to it, or rewrites what they hold. Those are named under "guard"
("sets"), and the lock file has what else sets them.

The last column says which SGLang versions need a seam, and what our code does otherwise in some.

| target in `sglang` | how | process | feature | reached by | guard | why | unnecessary when | versions |
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
        f"| {_reached_by(seam)} | {_guards(seam)} | {seam.why} | {seam.remove_when} "
        f"| {_versions(seam)} |"
        for seam in DECLARED
    ]
    return "\n".join([_INTRODUCTION, *rows]) + f"\n\n{_lost()}\n{_differences()}"


def differing() -> list[Seam]:
    """The entries that are of some versions alone, or whose own code does something else in some."""
    own = differing_themselves()
    return [seam for seam in DECLARED if seam.differs and (seam.versions or seam.handler in own)]


def adapted() -> list[Seam]:
    """Those with the same code, which come to a function of the adapter that does something else in some versions."""
    return [seam for seam in DECLARED if seam.differs and seam not in differing()]


def renamed() -> list[Seam]:
    """Those that do the same in all, with a target that has another name in some."""
    return [seam for seam in DECLARED if seam.moved and not seam.differs]


def of_features() -> list[Seam]:
    """Those of features alone that some supported version lacks."""
    absent = [support.absent(version) for version in lock.supported_versions()]
    return [seam for seam in DECLARED if any(set(seam.feature.split(", ")) <= one for one in absent)]


def _reached_by(seam: Seam) -> str:
    if seam.runs is Runs.ON_DEMAND:
        return f"on demand: {seam.called_by} {test_of(seam)}"
    return f"{seam.runs}{f', with {seam.runs_with}' if seam.runs_with else ''}"


def test_of(seam: Seam) -> str:
    """The test that comes to a seam of `Runs.ON_DEMAND`."""
    name = seam.handler.removeprefix("tessera_patches.")
    if seam.target.endswith("_from_ipc"):
        return NO_TEST
    return next(f"`tests/{test}`" for start, test in _TESTS.items() if name.startswith(start))


def tried_alone() -> list[str]:
    """The versions whose seams were lost one by one; of one that is on trial they were not."""
    return [version for version in lock.supported_versions() if _lost_file(version).exists()]


def _lost_file(version: str, folder: str = _ON_CPU) -> Path:
    return _RESULTS / folder / f"unreached-{version}.jsonl"


def lost_alone(version: str) -> dict[str, str]:
    """How the server ended in which SGLang did not come to a seam, by its name: `benchmarks/unreached_seams.py`."""
    folders = (_ON_CPU, _LATER, _ON_GPU)
    files = [file for folder in folders if (file := _lost_file(version, folder)).exists()]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {line["seam"]: line["ended"] for line in lines if "seam" in line}


def must_be_reached(version: str) -> list[Seam]:
    """The seams of a version that all servers reach, or those with some features or conditions."""
    return [seam for seam in at(version) if seam.runs is not Runs.ON_DEMAND]


def untried_without_gpu(version: str) -> list[Seam]:
    """Those of them that the CPU engine does not reach, and that no GPU has tried."""
    tried = lost_alone(version)
    return [seam for seam in must_be_reached(version) if seam.runs_with in _NEED_GPU and seam.name not in tried]


def is_named(seam: Seam, ended: str) -> bool:
    """Whether the line with which a server ended refuses to start, and names the seam."""
    refused = ended.startswith("tessera: refusing to start: ")
    return refused and ".".join(seam.target.split(".")[-2:]) in ended


def _lost() -> str:
    """How many entries were lost alone, how these servers ended, and which by another line."""
    rows, others = [], []
    for version in tried_alone():
        ends, seams = lost_alone(version), at(version)
        needed = must_be_reached(version)
        tried = [seam for seam in needed if seam.name in ends]
        named = [seam for seam in tried if is_named(seam, ends[seam.name])]
        served = [seam for seam in tried if ends[seam.name].startswith("serves")]
        ended = len(tried) - len(named) - len(served)
        counts = len(seams), len(needed), len(tried), len(named), ended, len(served), len(seams) - len(needed)
        rows.append((version, *map(str, counts)))
        unnamed = [(seam, f"`{ends[seam.name][:160]}`") for seam in tried if seam not in named]
        untried = [(seam, "not tried: it needs a GPU") for seam in untried_without_gpu(version)]
        others += [(version, f"`{_short(seam.name)}`", end) for seam, end in (*unnamed, *untried)]
    return f"""\
## Lost alone

`benchmarks/unreached_seams.py` starts a server for each entry that must be reached, in which SGLang does not come to
this one, and sends a request. How each ended is in `unreached-VERSION.jsonl` of `benchmarks/results/current`,
`{_ON_CPU}` and `{_LATER}`, of those that need a GPU in `{_ON_GPU}`:

{
        table(
            (
                *("SGLang", "entries", "must be reached", "lost alone", "refused by name", "ended by another line"),
                *("served", "on demand"),
            ),
            *rows,
        )
    }
Those that were not refused by their name:

{table(("SGLang", "entry", "end"), *others)}"""


def _differences() -> str:
    """How many entries differ between the supported versions, by kind, and which."""
    versions = lock.supported_versions()
    kinds = differing(), adapted(), renamed(), of_features()
    others = [seam for seam in DECLARED if not any(seam in kind for kind in kinds)]
    paths = [one for one in others if any(";" in path for path in (*one.callers, *one.relied, *one.writes))]
    found = reached()
    reading = {one.handler: found[one.handler] & READS for one in others if one.handler in found}
    counts = (
        (
            "had to differ: they are of some versions alone, or their own code does something else",
            len(kinds[0]),
        ),
        (
            "are the same, and call a function of the adapter (`engine/`, made to differ) that does something else",
            len(kinds[1]),
        ),
        ("do the same in all, and their target has another name in some", len(kinds[2])),
        ("are of a feature alone that some version lacks", len(kinds[3])),
        ("do the same in all, at the same target", len(others)),
    )
    targets = [{seam.target for seam in at(version)} for version in versions]
    apart = set[str]().union(*targets) - targets[0].intersection(*targets)
    rows = [
        *((seam, seam.differs) for seam in kinds[0]),
        *((seam, f"In the adapter: {seam.differs}") for seam in kinds[1]),
        *((seam, f"Another name: {seam.moved_why}") for seam in kinds[2]),
        *((seam, f"Of a feature: {support.OPTIONS[seam.feature]}") for seam in kinds[3]),
    ]
    which = table(
        ("target in `sglang`", "handler", "why it differs"),
        *(
            (f"`{_short(seam.target)}`", f"`{seam.handler.removeprefix('tessera_patches.')}`", why)
            for seam, why in rows
        ),
    )
    return f"""\
## Between the versions

{" and ".join(f"{len(at(version))} entries are for SGLang {version}" for version in versions)}; {len(apart)} targets are
for some of these versions alone. Of all {len(DECLARED)} entries:

{table(("entries", "that"), *((str(count), what) for what, count in counts))}
Of the last, {len(paths)} name a caller, or what is relied on or set, of some versions alone. {len(reading)} of their
handlers get a value by a function of the adapter that finds it in another place in some versions:
{", ".join(f"`{name}`" for name in sorted(set[str]().union(*reading.values())))}. A test looks for such code, and
compares it with this list.

{which}"""


def _short(target: str) -> str:
    return target.removeprefix("sglang.")


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
