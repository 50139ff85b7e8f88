"""The options that we add to the launcher's parser."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tessera.embed.options import EmbedOptions, Pooling
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
    assert not Flags().about_embeddings


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


def test_embeddings(capsys: pytest.CaptureFixture[str]) -> None:
    """They become the options of a request that says nothing, also in a child; a pooling that is none is refused."""
    read = parsed("--embeddings-pooling", "last", "--embeddings-normalize", "--embeddings-dimensions", "8")
    assert read.embed_options == EmbedOptions(pooling=Pooling.LAST, normalize=True, dimensions=8)
    assert Flags.from_wire(read.to_wire()) == read
    assert [one.about_embeddings for one in (read, parsed("--embeddings-text-only"))] == [True, True]
    with pytest.raises(SystemExit):
        parsed("--embeddings-pooling", "median")
    assert "mean, last, max, first" in capsys.readouterr().err
