"""The options that we add to the launcher's parser."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tessera.capabilities.embed import flags as embed
from tessera.capabilities.embed.options import EmbedOptions, Pooling
from tessera.capabilities.fingerprints import flags as fingerprints
from tessera.flags import Flags, add_to


def parsed(*arguments: str) -> Flags:
    """What a parser of ours alone reads."""
    parser = argparse.ArgumentParser()
    add_to(parser, Flags())
    return Flags().updated(vars(parser.parse_args(arguments)))


def test_no_options() -> None:
    """The defaults of the parser are those of the class, and ask for nothing."""
    assert parsed() == Flags()
    assert not Flags().needs_rows
    assert embed.refused(Flags(), rows=False) == fingerprints.refused(Flags(), rows=False) == []


def test_all_options() -> None:
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
    """They become the options of a request that says nothing; a pooling that is none is refused."""
    read = parsed("--embeddings-pooling", "last", "--embeddings-normalize", "--embeddings-dimensions", "8")
    assert read.embed_options == EmbedOptions(pooling=Pooling.LAST, normalize=True, dimensions=8)
    for given in (read, parsed("--embeddings-text-only")):
        assert embed.refused(given, rows=True) == []
        (line,) = embed.refused(given, rows=False)
        assert line.endswith("need --enable-return-hidden-states: add it")
    with pytest.raises(SystemExit):
        parsed("--embeddings-pooling", "median")
    assert "mean, last, max, first" in capsys.readouterr().err


def test_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The options as on a command line; what is not one of ours ends the process."""
    monkeypatch.setenv("TESSERA_ARGS", "--toploc-verification --toploc-thresholds '/a folder/t.json'")
    read = Flags.of_environment()
    assert read == Flags(toploc_verification=True, toploc_thresholds=Path("/a folder/t.json"))
    monkeypatch.setenv("TESSERA_ARGS", "--toploc-verify")
    with pytest.raises(SystemExit):
        Flags.of_environment()
    assert "TESSERA_ARGS: error: unrecognized arguments: --toploc-verify" in capsys.readouterr().err


def test_keywords() -> None:
    """TemporaryFields as Python has them, or as they are written; of the rest of the arguments nothing is looked at."""
    given = {"toploc_verification": True, "toploc_verification_topk": 64, "embeddings_pooling": "last", "tp_size": 2}
    wanted = Flags(toploc_verification=True, toploc_verification_topk=64, embeddings_pooling=Pooling.LAST)
    assert Flags().updated(given) == wanted
    assert wanted.updated({"toploc_thresholds": None, "toploc_verification": False}) == Flags(
        toploc_verification_topk=64, embeddings_pooling=Pooling.LAST
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"toploc_verification": "yes"}, "toploc_verification: got 'yes'; allowed: True, False"),
        ({"toploc_verification_topk": 0}, "toploc_verification_topk: got '0'; allowed: 1 to 512"),
        ({"injection_max_magnitude": None}, "injection_max_magnitude: got 'None'; allowed: a finite number above 0"),
    ],
)
def test_a_bad_keyword(given: dict[str, object], said: str) -> None:
    """It is named, with what is allowed."""
    with pytest.raises(ValueError, match=said):
        Flags().updated(given)
