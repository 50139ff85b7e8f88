"""The options that we add to the launcher's parser."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tessera.flags import Flags, add_to


def parsed(*arguments: str) -> Flags:
    """What a parser of ours alone reads."""
    parser = argparse.ArgumentParser()
    add_to(parser)
    return Flags.from_namespace(parser.parse_args(arguments))


def test_nothing_said() -> None:
    """The defaults of the parser are those of the class, and ask for nothing."""
    assert parsed() == Flags()
    assert not Flags().needs_rows


def test_all_said() -> None:
    """Each option becomes its field."""
    read = parsed("--toploc-verification", "--toploc-verification-topk", "32", "--toploc-thresholds", "t.json")
    assert read == Flags(toploc_verification=True, toploc_verification_topk=32, toploc_thresholds=Path("t.json"))
    assert read.needs_rows


@pytest.mark.parametrize("value", ["0", "-1", "513", "many", "1.5"])
def test_bad_topk(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The parser names the option and what is allowed."""
    with pytest.raises(SystemExit):
        parsed("--toploc-verification-topk", value)
    assert "--toploc-verification-topk" in capsys.readouterr().err
