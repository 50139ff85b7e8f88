"""Every ``tessera`` command that help texts and pages show can be typed as it stands."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.cli import parser

ROOT = Path(__file__).parents[2]


def parsers(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Itself and those of its commands."""
    yield one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def commands(text: str) -> list[str]:
    """Lines that begin with the command, continued ones joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    return re.findall(r"^\s*(?:\$ )?tessera (.+)$", joined, re.MULTILINE)


def shown() -> Iterator[str]:
    """Commands of all help texts, and of code blocks of all pages."""
    for one in parsers(parser()):
        yield from commands(one.epilog or "")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"```(?:bash|sh|console)?\n(.*?)```", page.read_text(), re.DOTALL):
            yield from commands(block)


@pytest.mark.parametrize("command", sorted(set(shown())))
def test_command(command: str) -> None:
    """It is parsed, to its last word."""
    words = shlex.split(command, comments=True)
    end = next((i for i, word in enumerate(words) if word in {">", "|", "&&"}), len(words))
    assert callable(parser().parse_args(words[:end]).run)


def test_commands_are_found() -> None:
    """Those with continued lines too."""
    assert any(command.startswith("toploc calibrate") and "--at-once" in command for command in shown())
