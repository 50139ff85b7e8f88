"""Tries a release of SGLang: ``python -m tessera_testing.upstream VERSION`` (``make upstream``), and writes a report.

What is committed is copied to ``.upstream/VERSION``, with a virtual environment of that release. For the trial every
new shape counts as reviewed: a server starts, and the tests run. The report says what a person must decide before the
release is supported. The copy then has what a pull request would have: a lock file with the shapes that somebody has
read, table of releases, generated pages. Its tests fail until the others are read and recorded, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tessera_testing.news import News
from tessera_testing.pages import ROOT

_BROUGHT = re.compile(r"^(?:(?:FAILED|ERROR) |=* ?\d+ (?:passed|failed|error)|\d+ of \d+ seams differ).*", re.MULTILINE)
"""Lines of a command's output that the report has."""


class Step(NamedTuple):
    """A command that has run.

    Attributes:
        name: what it is for.
        exit_code: 0 where it succeeded.
        seconds: how long it took.
        output: what it wrote.
    """

    name: str
    exit_code: int
    seconds: float
    output: str


def main() -> int:
    """Try a release. Returns 1 if anything is red."""
    parser = argparse.ArgumentParser(prog="make upstream", description=__doc__)
    parser.add_argument("version", help="of SGLang, for example 0.5.23")
    version = parser.parse_args().version
    copy = ROOT / ".upstream" / version
    report, diffs = copy.with_name(f"{version}.md"), copy.with_name(f"{version}.diff")
    steps = [run("copy", ["bash", "-c", _COPY, "copy", str(copy)], ROOT)]
    steps.append(run("source diff", [_tool(ROOT / ".venv", "tessera"), "seams", "diff", version], ROOT))
    diffs.write_text(steps[-1].output)  # for the issue, where the release cannot be installed
    steps.append(run("install", ["make", "--silent", "venv-other", f"VERSION={version}"], copy))
    other = copy / f".venv-{version}"
    steps.append(run("import", [_tool(other, "python"), "-m", "tessera_testing.news"], copy))
    news = of(steps[-1])
    if news is None:
        return _end(report, text(version, steps, news), steps)
    unread = run("shapes that nobody has read", [_tool(other, "tessera"), "seams", "lock"], copy)
    lock = copy / "patches/tessera_patches/lock.json"
    read = lock.read_text()
    diffs.write_text(f"{unread.output}\n{steps[1].output}")
    steps.append(run("record", ["bash", "-c", _RECORD, "record", str(other), version, news.python, news.torch], copy))
    steps.append(run("doctor", [_tool(other, "tessera"), "doctor"], copy))
    for name, target in (("start and canaries", "test-canaries"), ("suites", "test-other")):
        steps.append(run(name, ["make", "--silent", target, f"VERSION={version}"], copy))
    lock.write_text(read)
    return _end(report, text(version, steps, news), steps)


_COPY = """
git worktree prune
[ -e "$1" ] || git worktree add --quiet --detach "$1"
cd "$1" && git checkout --quiet --force --detach "$(git -C "$OLDPWD" rev-parse HEAD)"
"""
_RECORD = """
set -e
"$1/bin/tessera" seams lock --all
grep -qF "[\\"$2\\"]" patches/tessera_patches/releases.toml ||
  printf '\\n["%s"]\\npython = "%s"\\ntorch = "%s"\\n' "$2" "$3" "$4" >>patches/tessera_patches/releases.toml
"$1/bin/python" -m tessera_testing.page_tables
"""


def run(name: str, command: list[str], folder: Path) -> Step:
    """Run a command in a folder, and show what it writes."""
    print(f"== {name}", flush=True)  # noqa: T201 - the command's output
    start, lines = time.monotonic(), []
    try:
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for line in process.stdout or ():
                lines.append(line)
                print(line, end="", flush=True)  # noqa: T201 - the same
        exit_code = process.returncode
    except FileNotFoundError as error:  # what would have made the command failed
        exit_code, lines = 127, [str(error)]
    step = Step(name, exit_code, time.monotonic() - start, "".join(lines))
    print(f"== {name}: exit {step.exit_code} after {step.seconds:.0f} s", flush=True)  # noqa: T201 - the same
    return step


def text(version: str, steps: list[Step], news: News | None) -> str:
    """The report.

    Args:
        version: of SGLang.
        steps: what has run. The source diff exits with 1 where anything differs, which is no failure.
        news: what is new in the release; None where it was not installed.
    """
    rows = [f"| {one.name} | {'ok' if ok(one) else 'failed'} | {one.seconds:.0f} |" for one in steps]
    parts = [f"# SGLang {version}\n", "| step | result | seconds |", "|---|---|---|", *rows, ""]
    if news is not None:
        fit = f"{news.fit} of {news.seams} seams that it needs fit as they are"
        parts += [
            f"torch {news.torch}, Python {news.python}; {fit}. The source diff has those of the installed version.\n"
        ]
        parts += ["## What a person must decide\n", *decisions(news), *overrides()]
    for one in steps:
        if found := _BROUGHT.findall(one.output):
            parts += [f"\n## {one.name}\n", "```text", *found, "```"]
        elif not ok(one):
            parts += [f"\n## {one.name}\n", "```text", one.output[-4000:], "```"]
    return "\n".join(parts) + "\n"


def decisions(news: News) -> list[str]:
    """One line for each kind of decision, with what it is about."""
    kinds = {
        "changed functions to read": news.changed,
        "gone, or no longer reached: adapt a hook": news.gone,
        "options to classify in launch/options.toml": news.options,
        "fields of requests to classify in request_fields.py, or to list in news.py (refused)": news.fields,
        "sampling parameters to bound in sampling.py": news.parameters,
        "refused for its version, in refusals.py and support.py: try each, or leave it": news.refused,
        "allowed for its version, and refused with others: try each": news.allowed,
    }
    return [f"- {len(names)} {kind}{': ' if names else ''}{', '.join(names)}" for kind, names in kinds.items()]


def overrides() -> list[str]:
    """A line with the requirements that replace the release's own (``UV_OVERRIDE``), if there are any."""
    files = os.environ.get("UV_OVERRIDE", "").split()
    found = [line for file in files for line in Path(file).read_text().splitlines() if line.strip()]
    return [f"- {len(found)} requirements that replace the release's own: {', '.join(found)}"] if found else []


def of(step: Step) -> News | None:
    """The one line of JSON among the engine's warnings; None where it was not installed, or does not import."""
    for line in step.output.splitlines():
        if line.startswith('{"python"'):
            return News(**json.loads(line))
    return None


def ok(step: Step) -> bool:
    """Whether a step is no reason against the release."""
    return step.exit_code == 0 or step.name == "source diff"


def _tool(venv: Path, name: str) -> str:
    return str(venv / "bin" / name)


def _end(report: Path, content: str, steps: list[Step]) -> int:
    report.write_text(content)
    print(report)  # noqa: T201 - the command's output
    return 0 if all(map(ok, steps)) else 1


if __name__ == "__main__":
    sys.exit(main())
