"""Our options on the launcher's own command line, without starting it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tessera.testing.launch import environment
from tessera.testing.tiny import TINY

PROGRAM = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
from tessera import config
args = prepare_server_args(sys.argv[1:])
flags = config.flags
print(json.dumps([flags.toploc_verification, flags.toploc_verification_topk, config.active.features(),
                  args.return_hidden_states_mode]))
"""


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What a launcher with these arguments makes of them."""
    command = [sys.executable, "-c", PROGRAM, "--model-path", str(TINY), "--device", "cpu", *arguments]
    return subprocess.run(command, env=environment({}), capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [False, 128, [], None]),
        (["--toploc-verification", "--toploc-verification-topk", "64"], [True, 64, ["rows"], "full"]),
    ],
)
def test_our_options_are_read(arguments: list[str], expected: list[object]) -> None:
    """They stand beside SGLang's, and imply what they need."""
    run = launched(*arguments)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--toploc-verification-topk", "0"], "argument --toploc-verification-topk: got '0'; allowed: 1 to 512"),
        (
            ["--toploc-verification", "--return-hidden-states-mode", "last"],
            "tessera: refusing to start: --toploc-verification needs every row",
        ),
    ],
)
def test_a_bad_value_refuses_the_start(arguments: list[str], said: str) -> None:
    """With a line that names the option."""
    run = launched(*arguments)
    assert run.returncode != 0
    assert said in run.stderr


def test_help_shows_them() -> None:
    """In a group of their own."""
    run = launched("--help")
    assert run.returncode == 0
    assert "--toploc-verification-topk K" in run.stdout
