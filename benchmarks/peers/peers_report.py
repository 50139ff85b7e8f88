"""What came out of SGLang's tests on both sides: reading the records, and the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from peers_options import EVERYTHING, STOCK

PASSED = "passed"
NOT_RUN = "not run"
# The worst outcome of a test's phases and sub-tests is the test's.
_BADNESS = ("skipped", PASSED, "failed")

_HOW = """Made by `make test-peers SGLANG=DIR` on the CPU engine, with the tiny models of this repository: what asks for
a true answer, a GPU or the network fails or is skipped, on stock too. What does not pass with everything on runs on
stock. Everything on: `--enable-return-hidden-states --toploc-verification --enable-injection`, and `--tile-spec` where
a server drafts with EAGLE or EAGLE3. Tests that start no server run in a process that is the main process of such a
server."""


@dataclass
class Side:
    """One run of a group: the outcome of each test by its id, and how the run ended."""

    outcomes: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    end: str = NOT_RUN

    @classmethod
    def read(cls, path: Path) -> Side:
        """Read a file of records; nothing if there is none."""
        side = cls()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            record = json.loads(line)
            if "end" in record:
                side.end = record["end"]
                continue
            name, outcome = record["id"], record["outcome"]
            worst = max(outcome, side.outcomes.get(name, "skipped"), key=_BADNESS.index)
            side.outcomes[name] = worst
            if outcome == worst:
                side.texts[name] = record.get("text", "")
        return side

    @staticmethod
    def close(path: Path, end: str) -> None:
        """Note how a run ended."""
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"end": end}) + "\n")

    def of(self, test: str) -> str:
        """The outcome of a test. One whose file or class failed to start has failed."""
        if test in self.outcomes:
            return self.outcomes[test]
        return self.outcomes.get(test.split("::", maxsplit=1)[0], NOT_RUN)


class Pair(NamedTuple):
    """Both sides of a group, and those of the tests that were tried again."""

    stock: Side
    everything: Side
    stock_again: Side
    everything_again: Side

    def different(self) -> list[str]:
        """Tests that pass on stock and do not pass with everything on, at the first try."""
        passed = [test for test, outcome in self.stock.outcomes.items() if outcome == PASSED]
        return [test for test in passed if self.everything.of(test) != PASSED]

    def broken(self) -> list[str]:
        """Those of `different` that are so again."""
        return [
            test
            for test in self.different()
            if not (self.everything_again.of(test) == PASSED or self.stock_again.of(test) not in {PASSED, NOT_RUN})
        ]


def load(results: Path, group: str) -> Pair:
    """Read what a group's runs left."""
    paths = [results / f"{group}.{side}{again}.jsonl" for again in ("", ".again") for side in (STOCK, EVERYTHING)]
    return Pair(*map(Side.read, paths))


def report(pairs: Mapping[str, Pair], excluded: Iterable[Mapping[str, Any]], sglang: str) -> tuple[str, int]:
    """Return the page, and how many tests pass on stock and fail with everything on."""
    broken = [(test, pair) for pair in pairs.values() for test in pair.broken()]
    unsteady = [test for pair in pairs.values() for test in pair.different() if test not in pair.broken()]
    ours = [outcome for pair in pairs.values() for outcome in pair.everything.outcomes.items()]
    files = {test.split("::")[0] for test, _ in ours}
    lively = {test.split("::")[0] for test, outcome in ours if outcome == PASSED}
    count = Counter(outcome for _, outcome in ours)
    head = (
        f"{len(files)} files, {len(lively)} with tests that pass; {count[PASSED]:,} tests pass with everything on, "
        f"{len(ours) - count[PASSED]:,} do not: **{len(broken)} of these pass on stock**."
    )
    lines = [
        f"# SGLang {sglang}'s own tests, on stock and with everything on",
        "",
        head,
        "",
        _HOW,
        "",
        "| file | passed with everything on | failed or skipped | of these pass on stock |",
        "|---|---|---|---|",
        *_rows(pairs),
        "",
        *_broken(broken),
        *(["## Passed at the second try", "", *(f"- `{test}`" for test in unsteady), ""] if unsteady else []),
        *_ends(pairs),
        "## Excluded",
        "",
        "| files or tests | why |",
        "|---|---|",
        *(f"| {_names(entry)} | {entry['why']} |" for entry in excluded),
        "",
    ]
    return "\n".join(lines), len(broken)


def _names(entry: Mapping[str, Any]) -> str:
    """What an exclusion names; one that says more than a name has its own code marks."""
    names = [*entry.get("files", []), *entry.get("tests", [])]
    return ", ".join(name if "`" in name else f"`{name}`" for name in names)


def _rows(pairs: Mapping[str, Pair]) -> Iterable[str]:
    for pair in pairs.values():
        broken = Counter(test.split("::")[0] for test in pair.broken())
        outcomes = pair.everything.outcomes
        for file in sorted({test.split("::")[0] for test in outcomes}):
            passed = [outcome == PASSED for test, outcome in outcomes.items() if test.split("::")[0] == file]
            yield f"| `{file}` | {sum(passed)} | {len(passed) - sum(passed)} | {broken[file]} |"


def _broken(broken: list[tuple[str, Pair]]) -> list[str]:
    if not broken:
        return []
    lines = ["## Passes on stock, fails with everything on", ""]
    for test, pair in broken:
        text = pair.everything.texts.get(test) or pair.everything.end
        lines += [f"- `{test}`", "", *(f"      {line}" for line in text.splitlines()[-4:]), ""]
    return lines


def _ends(pairs: Mapping[str, Pair]) -> list[str]:
    """Groups that did not come to their end."""
    lines = [
        f"- {name}, {side}: {run.end}"
        for name, pair in pairs.items()
        for side, run in ((STOCK, pair.stock), (EVERYTHING, pair.everything))
        if run.end not in {"status 0", "status 1"} and not (side == STOCK and run.end == NOT_RUN)
    ]
    return ["## Not run to the end", "", *lines, ""] if lines else []
