"""Our options on the launcher's own command line, without starting it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tessera.launching.command import environment
from tessera_testing.drafts import TREE, chain, drafting
from tessera_testing.marks import needs, where_supported
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.tiny import TINY

# In a process that has imported the engine; forks for each line of arguments.
PROGRAM = """
import json, os, sys, tempfile
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.server_args import ServerArgs, prepare_server_args
from tessera.config import Settings
from tessera_patches.engine.options import resolved

for line in sys.stdin:
    said = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]
    child = os.fork()
    if child == 0:
        for number, file in enumerate(said, start=1):
            os.dup2(file.fileno(), number)
        given = json.loads(line)
        args = prepare_server_args(given) if isinstance(given, list) else Engine.server_args_class(**given)
        other = ServerArgs(model_path="dummy")
        for made in (args, other):
            getattr(made, "resolve_once", int)()
        flags = args._tessera_flags
        # What one server is started with is not read into another's arguments.
        assert other._tessera_flags == type(flags)()
        args.check_server_args()
        found = resolved(args)
        print(json.dumps([flags.toploc_verification, flags.toploc_verification_topk,
                          Settings.from_server_args(found, flags).features(),
                          found.return_hidden_states_mode, found.speculative_use_rejection_sampling]))
        sys.exit()
    _, status = os.waitpid(child, 0)
    for file in said:
        file.seek(0)
    print(json.dumps([os.waitstatus_to_exitcode(status), *(file.read() for file in said)]), flush=True)
"""
HIDDEN = "--enable-return-hidden-states"
TILE, GREEDILY = "--tile-spec", "--tile-spec-no-rejection-sampling"
SIZED = ["speculative_stops", "cpu_speculation", "tilespec"]
"""What is on with `TILE`; without it the middle one."""
LENIENT = ("--speculative-accept-threshold-single", "0.9")


class Outcome(NamedTuple):
    """What the launcher made of its arguments."""

    exit_code: int
    stdout: str
    stderr: str


Launch = Callable[..., Outcome]


@pytest.fixture(scope="module")
def launch(interpreter: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """The launcher's handling of its command line."""
    (theirs, commands), (outcomes, said) = os.pipe(), os.pipe()
    folder = tmp_path_factory.mktemp("flags")
    with (
        os.fdopen(theirs, "rb") as stdin,
        os.fdopen(commands, "w") as sent,
        os.fdopen(outcomes) as received,
        os.fdopen(said, "wb") as stdout,
        Path(os.devnull).open("wb") as stderr,
    ):
        launcher = interpreter.connect(("-c", PROGRAM), environment({}), folder, [stdin, stdout, stderr])
        stdin.close()
        stdout.close()

        def run(*arguments: str, **keywords: object) -> Outcome:
            line = ["--model-path", str(TINY), "--device", "cpu", *arguments]
            given = {"model_path": str(TINY), "device": "cpu", **keywords}
            print(json.dumps(given if keywords else line), file=sent, flush=True)
            return Outcome(*json.loads(received.readline()))

        yield run
        sent.close()
        launcher.wait()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [False, 128, [], None, False]),
        (["--toploc-verification", "--toploc-verification-topk", "64"], [True, 64, ["rows"], "full", False]),
        *where_supported(
            "tilespec",
            ([*drafting("EAGLE3", chain(3)), TILE], [False, 128, SIZED, None, True]),
            ([*drafting("EAGLE", chain(3)), TILE, *LENIENT], [False, 128, SIZED, None, False]),
        ),
        *(
            pytest.param(
                [*options, TILE], [False, 128, SIZED, None, False], marks=[pytest.mark.full, needs("tilespec")]
            )
            for options in (
                (*drafting("EAGLE", chain(3)), GREEDILY),
                drafting("EAGLE", TREE),
                drafting("STANDALONE", chain(3)),
            )
        ),
        ([*drafting("EAGLE", chain(3))], [False, 128, SIZED[1:2], None, False]),
        ([HIDDEN, "--enable-dp-attention"], [False, 128, ["rows"], "full", False]),  # SGLang turns it off: one replica
    ],
)
def test_our_options_are_read(launch: Launch, arguments: list[str], expected: list[object]) -> None:
    """They stand beside SGLang's, and imply what they need."""
    outcome = launch(*arguments)
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads(outcome.stdout.splitlines()[-1]) == expected


def test_our_options_are_keywords(launch: Launch) -> None:
    """Of ``Engine``; a wrong value is named, and one that contradicts SGLang's is refused."""
    outcome = launch(toploc_verification=True, toploc_verification_topk=64)
    assert json.loads(outcome.stdout.splitlines()[-1]) == [True, 64, ["rows"], "full", False], outcome.stderr
    for wrong, said in (
        ({"toploc_verification_topk": 0}, "tessera: refusing to start: toploc_verification_topk: got '0'; allowed:"),
        ({"toploc_verification": True, "return_hidden_states_mode": "last"}, "--toploc-verification needs every row"),
    ):
        outcome = launch(**wrong)
        assert outcome.exit_code > 0
        assert said in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--toploc-verification-topk", "0"], "argument --toploc-verification-topk: got '0'; allowed: 1 to 512"),
        (
            ["--toploc-verification", "--return-hidden-states-mode", "last"],
            "tessera: refusing to start: --toploc-verification needs every row",
        ),
        *(
            ([HIDDEN, *option], f"tessera: refusing to start: {option[0]} cannot be combined with {HIDDEN}: ")
            for option in (
                ["--tokenizer-worker-num", "2"],
                ["--is-embedding"],
            )
        ),
        ([HIDDEN, "--grpc-mode"], f"tessera: refusing to start: --smg-grpc-mode cannot be combined with {HIDDEN}: "),
        (["--rows-on-host"], "tessera: refusing to start: --rows-on-host needs --enable-return-hidden-states or"),
        ([GREEDILY], f"tessera: refusing to start: {GREEDILY} says how {TILE} drafts: add it"),
        *where_supported(
            "tilespec",
            (
                [*drafting("EAGLE", chain(3)), TILE, GREEDILY, "--speculative-use-rejection-sampling"],
                f"tessera: refusing to start: {GREEDILY} contradicts --speculative-use-rejection-sampling",
            ),
            (
                [*drafting("EAGLE", chain(3)), TILE, "--grpc-mode"],
                f"tessera: refusing to start: --smg-grpc-mode cannot be combined with {TILE}: ",
            ),
            (
                [*drafting("EAGLE", chain(3)), TILE, "--tokenizer-worker-num", "2"],
                f"tessera: refusing to start: --tokenizer-worker-num cannot be combined with {TILE}: ",
            ),
            (
                [*drafting("EAGLE", chain(3)), TILE, "--speculative-adaptive"],
                f"tessera: refusing to start: --speculative-adaptive cannot be combined with {TILE}: ",
            ),
        ),
    ],
)
def test_a_bad_value_refuses_the_start(launch: Launch, arguments: list[str], said: str) -> None:
    """With a line that names the option."""
    outcome = launch(*arguments)
    assert outcome.exit_code > 0
    assert said in outcome.stderr


def test_help_shows_them(launch: Launch) -> None:
    """In a group of their own."""
    outcome = launch("--help")
    assert outcome.exit_code == 0
    assert "--toploc-verification-topk K" in outcome.stdout
