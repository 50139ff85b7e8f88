"""Every command that help texts and pages show can be typed as it stands."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tessera.cli import parser
from tessera.flags import ENVIRONMENT, Flags
from tessera.launching.command import environment
from tessera_testing.pages import ROOT, blocks

OTHERS = {"lm_eval": "lm-eval"}
"""Commands of other tools, and the heading under which they stand."""
LAUNCH = "-m sglang.launch_server"
# Imports the engine once.
PROGRAM = """
import argparse, json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for line in json.load(sys.stdin):
    print(line, file=sys.stderr)
    parser.parse_args(line)
"""


def parsers(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Itself and those of its commands."""
    yield one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def joined(text: str) -> str:
    """Continued lines as one."""
    return re.sub(r"\\\n\s*", "", text)


def commands() -> Iterator[str]:
    """Commands in blocks of pages: lines of ``shell``, and those after a prompt in ``console``."""
    for block in blocks("shell"):
        yield from (line for line in joined(block.code).splitlines() if line.strip())
    for block in blocks("console"):
        yield from re.findall(r"^\$ (.+)$", joined(block.code), re.MULTILINE)


def ours() -> Iterator[str]:
    """Our own commands, those of help texts too, without the name."""
    texts = [one.epilog or "" for one in parsers(parser())]
    for line in [*commands(), *joined("\n".join(texts)).splitlines()]:
        if line.strip().startswith("tessera "):
            yield line.strip().removeprefix("tessera ")


@pytest.mark.parametrize("command", sorted(set(ours())))
def test_command(command: str) -> None:
    """It is parsed, to its last word."""
    words = shlex.split(command, comments=True)
    end = next((i for i, word in enumerate(words) if word in {">", "|", "&&"}), len(words))
    assert callable(parser().parse_args(words[:end]).run)


def test_commands_are_found() -> None:
    """Those with continued lines too."""
    assert any(command.startswith("toploc calibrate") and "--at-once" in command for command in ours())


def _make(words: list[str]) -> bool:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return words[0] in targets


def _pip(words: list[str]) -> bool:
    extras = re.findall(r'^    "(\w+)": ', (ROOT / "setup.py").read_text(), re.MULTILINE)
    wanted = re.findall(r"\[(\w+)\]", words[-1])
    return words[0] == "install" and set(wanted) <= set(extras)


def _export(words: list[str]) -> bool:
    name, _, value = words[0].partition("=")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ENVIRONMENT, value)
        return name == ENVIRONMENT and isinstance(Flags.of_environment(), Flags)


def _python(words: list[str]) -> bool:
    if words[0] != "-m":
        return (ROOT / words[0]).exists()
    return words[1] in {"sglang.launch_server", "sglang.bench_serving", "tessera_testing.page_tables", "pytest"}


CHECKS: dict[str, Callable[[list[str]], bool]] = {
    "make": _make,
    "source": lambda words: words == [".venv/bin/activate"],
    "pip": _pip,
    "export": _export,
    "python": _python,
    "curl": lambda words: any(word.startswith("http://127.0.0.1:30000/") for word in words),
    "tessera": lambda _: True,  # above
    **dict.fromkeys(OTHERS, lambda _: True),
}


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_line(line: str) -> None:
    """What it starts is there; a command that nobody knows is no example."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word) or "export" in line]
    if words:  # not a comment
        name, *arguments = words
        assert CHECKS[name.rpartition("/")[2]](arguments), line


def test_servers_take_their_options() -> None:
    """SGLang's own parser, with our options, reads every launch line."""
    lines = [shlex.split(line.partition(LAUNCH)[2]) for line in commands() if LAUNCH in line]
    assert len(lines) > 10
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(
        command, input=json.dumps(lines), env=environment({}), capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
