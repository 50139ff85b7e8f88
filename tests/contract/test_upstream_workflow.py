"""The job for releases: each step's own shell, with a stand-in for GitHub's command and a remote in a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
VERSION = "0.5.99"
GH = """#!/usr/bin/env bash
echo "$*" >>"$GH_CALLS"
case "$1 $2" in
  "pr create") exit "${PR_FAILS:-0}" ;;
  "issue comment") cat >"$GH_CALLS.comment" ;;
  "search issues") echo "$TRIED" ;;
  "issue create") echo https://github.com/owner/name/issues/7 ;;
esac
"""


class Job:
    """A checkout as the job has it after `make upstream`, whose steps are run one at a time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.calls = home / "calls"
        self.calls.touch()
        (home / "bin").mkdir()
        (home / "bin/gh").write_text(GH)
        (home / "bin/gh").chmod(0o755)
        self.remote = home / "remote.git"
        self.changed = home / ".upstream" / VERSION
        self.git(home, "init", "-q", "--bare", str(self.remote))
        self.git(home, "init", "-q", "-b", "main", str(self.changed))
        (self.changed / "lock").write_text("old\n")
        self.git(self.changed, "add", ".")
        self.git(self.changed, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "main")
        self.git(self.changed, "remote", "add", "origin", str(self.remote))
        (self.changed / "lock").write_text("new\n")
        (home / f".upstream/{VERSION}.md").write_text("what was tried\n")
        (home / f".upstream/{VERSION}.diff").write_text("-old\n+new\n")
        folder = home / "patches/tessera_patches"
        folder.mkdir(parents=True)
        (folder / "releases.toml").write_bytes((ROOT / "patches/tessera_patches/releases.toml").read_bytes())

    def git(self, folder: Path, *args: str) -> str:
        """What git says."""
        return subprocess.check_output(["git", *args], cwd=folder, text=True)  # noqa: S607

    def run(self, name: str, **env: str) -> str:
        """What one step says; as GitHub, it ends with the first command that fails."""
        steps: list[dict[str, Any]] = yaml.safe_load((ROOT / ".github/workflows/upstream.yml").read_text())["jobs"][
            "release"
        ]["steps"]
        (script,) = (step["run"] for step in steps if step.get("name", "").startswith(name))
        of_job = {
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "GH_CALLS": str(self.calls),
            "GITHUB_ENV": str(self.home / "env"),
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_RUN_ID": "1",
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=self.home, env=of_job | env, check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """In a folder of its own."""
    return Job(tmp_path)


@pytest.mark.parametrize(
    ("asked", "tried", "found"),
    [(VERSION, "1", f"VERSION={VERSION}\n"), ("0.5.23", "0", ""), ("0.5.17", "0", "")],
    ids=["asked for again", "supported", "supported, the other"],
)
def test_a_release_is_tried_once(job: Job, asked: str, tried: str, found: str) -> None:
    """Unless a person asks for it; never one that is supported."""
    said = job.run("Find the release", ASKED=asked, TRIED=tried)
    assert (job.home / "env").exists() == bool(found)
    assert (job.home / "env").read_text() == found if found else "nothing to do" in said


def test_what_is_no_version_ends_the_job(job: Job) -> None:
    """It goes into commands."""
    with pytest.raises(subprocess.CalledProcessError):
        job.run("Find the release", ASKED="1.0; rm -rf /", TRIED="0")


def test_green_opens_a_pull_request(job: Job) -> None:
    """Of a branch with the change, and with the report as its text."""
    job.run("Green", VERSION=VERSION)
    assert job.git(job.remote, "show", f"sglang-{VERSION}:lock") == "new\n"
    (call,) = job.calls.read_text().splitlines()
    assert call.startswith("pr create --draft")
    assert call.endswith(f"--body-file ../{VERSION}.md --head sglang-{VERSION}")


def test_green_opens_an_issue_where_actions_may_not(job: Job) -> None:
    """It names the branch, which is pushed all the same."""
    job.run("Green", VERSION=VERSION, PR_FAILS="1")
    assert job.git(job.remote, "show", f"sglang-{VERSION}:lock") == "new\n"
    assert f"branch sglang-{VERSION}" in job.calls.read_text().splitlines()[1]


def test_red_opens_an_issue_with_the_diffs(job: Job) -> None:
    """The report is its text; the diffs are a comment."""
    job.run("Red", VERSION=VERSION)
    created, commented = job.calls.read_text().splitlines()
    assert created == f"issue create --title SGLang {VERSION} --body-file .upstream/{VERSION}.md"
    assert commented.startswith("issue comment https://github.com/owner/name/issues/7")
    comment = Path(f"{job.calls}.comment").read_text()
    assert "```diff\n-old\n+new\n\n```" in comment
    assert "https://github.com/owner/name/actions/runs/1" in comment
