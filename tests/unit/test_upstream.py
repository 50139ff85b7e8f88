"""The report about a release of SGLang that was tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tessera_testing import upstream
from tessera_testing.news import News
from tessera_testing.upstream import Step

NEWS = News(
    ">=3.11", "2.14.1", 80, 78, ["a.b.c", "a.d"], ["a.e no longer calls a.f"], ["new_option"], [], [], [], ["--b"]
)
FAILED = Step("suites", 1, 61.4, "noise\nFAILED tests/a.py::test_b - no\n1 failed, 2 passed in 3.0s\n")


def test_a_release_that_does_not_fit() -> None:
    """What failed, what differs, and each thing that a person must decide, counted."""
    steps = [Step("source diff", 1, 2.0, "+ new line\n3 of 80 seams differ in SGLang 9.9\n"), FAILED]
    assert [upstream.ok(one) for one in steps] == [True, False]
    report = upstream.text("9.9", steps, NEWS).splitlines()
    for line in (
        "| source diff | ok | 2 |",
        "| suites | failed | 61 |",
        (
            "torch 2.14.1, Python >=3.11; 78 of 80 seams that it needs fit as they are. "
            "The source diff has those of the installed version."
        ),
        "- 2 changed functions to read: a.b.c, a.d",
        "- 1 gone, or no longer reached: adapt a hook: a.e no longer calls a.f",
        "- 1 options to classify in launch/options.toml: new_option",
        "- 0 sampling parameters to bound in sampling.py",
        "- 0 refused for its version, in refusals.py and support.py: try each, or leave it",
        "- 1 allowed for its version, and refused with others: try each: --b",
        "3 of 80 seams differ in SGLang 9.9",
        "FAILED tests/a.py::test_b - no",
        "1 failed, 2 passed in 3.0s",
    ):
        assert line in report
    assert {"noise", "+ new line"}.isdisjoint(report)


def test_requirements_in_the_place_of_the_release_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decisions, too."""
    monkeypatch.delenv("UV_OVERRIDE", raising=False)
    assert upstream.overrides() == []
    (tmp_path / "a").write_text("cuda-tile==1.7.0\n\n")
    monkeypatch.setenv("UV_OVERRIDE", f"{tmp_path / 'a'} ")
    assert upstream.overrides() == ["- 1 requirements that replace the release's own: cuda-tile==1.7.0"]


def test_a_release_that_does_not_import() -> None:
    """The end of what it wrote is in the report, and nothing is to be decided yet."""
    step = Step("import", 1, 1.0, "No module named 'sglang.srt'")
    assert upstream.of(step) is None
    report = upstream.text("9.9", [step], None)
    assert "No module named 'sglang.srt'" in report
    assert "decide" not in report


def test_news_among_warnings() -> None:
    """The engine writes what it likes before and after."""
    line = json.dumps(NEWS._asdict())
    assert upstream.of(Step("import", 0, 1.0, f"{{warning}}\n{line}\nsys:1: bye\n")) == NEWS


def test_commands_that_are_not_there(tmp_path: Path) -> None:
    """A step that fails, as any other; one that runs has its output and its time."""
    assert upstream.run("none", [str(tmp_path / "nothing")], tmp_path).exit_code == 127
    step = upstream.run("echo", ["bash", "-c", "echo a; echo b >&2; exit 3"], tmp_path)
    assert (step.exit_code, step.output) == (3, "a\nb\n")
