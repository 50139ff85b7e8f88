"""What the logs of test suites on borrowed GPUs say: which suite ran where, when, at which commit, and what it found.

The logs are ``benchmarks/results/current/*/tests*.txt``. Lines that begin with ``#`` say what the lines after them come
from. A suite is one line with ``passed`` or ``exit``, in one of two forms::

    awq.log:1 passed, 2 warnings in 146.41s (0:02:26)
    -- awq: exit 0, 150 s; 1 passed, 2 warnings in 146.41s (0:02:26)

Its ``MEASURED`` lines come before it in the first form, with the same name, and after it in the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tessera_testing.pages import ROOT

LOGS = ROOT / "benchmarks" / "results" / "current"
_COMMIT = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,10}\b")
_VERSION = re.compile(r"\bsglang (0\.\d+\.\d+)(?: and (0\.\d+\.\d+))?", re.IGNORECASE)
_GPUS = re.compile(r"\b(one|two) (?:of two )?(?:NVIDIA )?H[12]00\b", re.IGNORECASE)
_NAMED = re.compile(r"0\.\d+\.\d+")
_OF_A_LOG = re.compile(r"([\w-]+)\.log:(.*)")
_OF_A_SUITE = re.compile(r"-- (?:(0\.\d+\.\d+) )?([\w-]+): (.*)")
_ENDED = re.compile(r"\d+ (?:passed|failed|errors?)\b|exit \d+")
_ANSWERS = re.compile(r"(\d+) answers")
_COSINE = re.compile(r"least cosine (0\.\d+)")
_DRAFTS = re.compile(r"(\d+) drafts accepted")


class Run(NamedTuple):
    """A suite that ran.

    Attributes:
        suite: its name in ``benchmarks/host/other_session.sh``.
        sglang: version.
        gpu: its kind, "H200".
        gpus: how many the host had, "one" or "two"; "" if that is not recorded.
        commit: "" if it is not recorded.
        log: the file; its folder begins with the date.
        lines: what it says of this run.
    """

    suite: str
    sglang: str
    gpu: str
    gpus: str
    commit: str
    log: Path
    lines: tuple[str, ...]

    @property
    def date(self) -> str:
        """``YYYY-MM-DD``."""
        return self.log.parent.name[:10]

    def outcome(self) -> str:
        """How it ended."""
        text = " ".join(self.lines)
        counts = [found[0] for kind in ("passed", "failed", "errors?") if (found := re.search(rf"\d+ {kind}\b", text))]
        # A run under a limit of time says by its exit that tests were cut off.
        ended = re.search(r"exit (\d+)", text)
        cut_off = ["cut off"] if ended and ended[1] == "124" else []
        return ", ".join([*counts, *cut_off]) or ("passed" if ended and ended[1] == "0" else "failed")

    def measured(self) -> list[str]:
        """Answers that were compared, the least cosine to the reference's vectors, drafts; what is noted of them."""
        text = " ".join(self.lines)
        answers, cosines, drafts = (pattern.findall(text) for pattern in (_ANSWERS, _COSINE, _DRAFTS))
        compared = f"{max(map(int, answers)):,} answers" if answers else ""
        least = f"least cosine {min(cosines)}" if cosines else ""
        accepted = f"{sum(map(int, drafts)):,} drafts accepted" if any(map(int, drafts)) else ""
        return [one for one in (compared, least, accepted) if one]


def runs() -> Iterator[Run]:
    """All of them whose version of SGLang is recorded, the earliest first."""
    for log in sorted(LOGS.glob("*/tests*.txt")):
        yield from _runs(log)


def latest(suite: str, *, by_gpus: bool = False) -> list[Run]:
    """The last run of a suite with each version of SGLang; with ``by_gpus`` on one GPU and on two."""
    found = {(run.sglang, run.gpus if by_gpus else ""): run for run in runs() if run.suite == suite}
    return [found[key] for key in sorted(found, reverse=True)]


class _Origin(NamedTuple):
    """What the last lines with ``#`` say of those after them."""

    sglang: str
    gpus: str = ""
    commit: str = ""

    def then(self, line: str) -> _Origin:
        """After a further one: what it does not say is as before. Of two versions, each suite's line names its own."""
        version, gpus, commit = (pattern.search(line) for pattern in (_VERSION, _GPUS, _COMMIT))
        return _Origin(
            ("" if version[2] else version[1]) if version else self.sglang,
            gpus[1].lower() if gpus else self.gpus,
            commit[0] if commit else self.commit,
        )


def _runs(log: Path) -> Iterator[Run]:
    gpu = log.parent.name[11:].upper()
    lines = log.read_text().splitlines()
    named = _NAMED.search(log.stem)
    origin = _Origin(named[0] if named else "").then(lines[0])
    measured: list[str] = []
    for number, line in enumerate(lines):
        if line.startswith("#"):
            origin = origin.then(line)
        suite, version, said, more = "", "", "", []
        if found := _OF_A_SUITE.match(line):
            version, suite, said = found.groups()
            more = [one for one in _until(lines[number + 1 :], "--", "#") if one.startswith("MEASURED")]
        elif found := _OF_A_LOG.match(line):
            suite, said = found.groups()
            measured.append(said)
            more = measured
        sglang = version or origin.sglang
        if sglang and "MEASURED" not in said and _ENDED.search(said):
            yield Run(suite, sglang, gpu, origin.gpus, origin.commit, log, (said, *more))
            measured = []


def _until(lines: list[str], *starts: str) -> Iterator[str]:
    """The lines before the first one that begins so."""
    for line in lines:
        if line.startswith(starts):
            return
        yield line
