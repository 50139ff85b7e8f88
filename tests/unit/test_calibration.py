"""Thresholds from measured distances, the weights of known cheats, and what the command line reads and prints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.capabilities.fingerprints.calibration import cheats
from tessera.capabilities.fingerprints.calibration.distances import (
    Measured,
    count_accepted,
    rate_below,
    report,
    thresholds,
)
from tessera.capabilities.fingerprints.calibration.prover import Response, prompts, tamper
from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.cli import toploc, verify


def response(*distances: tuple[int, float, float], values: int = 128) -> Measured:
    """What a verifier found."""
    return Measured([Distance(*one) for one in distances], [values] * len(distances))


HONEST = [response((2, 0.5, 0), (4, 1.0, 1)), response((0, 0.2, 0))]
CHEAT = [response((0, 0.2, 0), (20, 6.0, 4)), response((3, 0.6, 1))]


def test_thresholds_lie_above_all_honest_distances() -> None:
    """By the margin, in each of the three; exponents as a share, so that short fingerprints count in proportion."""
    found = thresholds([*HONEST, response((4, 0, 0), values=64)], margin=1.25)
    assert found == Thresholds(4 / 64 * 1.25, 1.25, 1.25)
    assert count_accepted(HONEST, found) == 2


def test_thresholds_of_no_noise() -> None:
    """Something is left for a value that lies on the edge between two."""
    found = thresholds([response((0, 0, 0))])
    assert found == Thresholds(1 / 128 * 1.25, 1 / 128 * 1.25, 1.0)
    assert count_accepted([response((0, 1 / 128, 0)), response((1, 0, 0)), response((0, 2 / 128, 0))], found) == 2


@pytest.mark.parametrize(("count", "warns"), [(4, True), (58, False)])
def test_too_few_responses(count: int, *, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thresholds by a handful of responses are written with a warning, by what can be said of them."""
    options = argparse.Namespace(
        model_path=tmp_path, server_args=[], tokens=8, margin=1.25, output=tmp_path / "out.json", plot=None
    )
    toploc.write(options, {"base": [response((0, 0, 0))] * count}, {})
    assert ("warning: too few honest responses" in capsys.readouterr().out) is warns
    assert json.loads((tmp_path / "out.json").read_text())["thresholds"]["mant_err_mean"] > 0


def test_report() -> None:
    """Which share of each kind passes, under these thresholds and the paper's; a cheat is caught by its worst chunk."""
    made: Any = report({"base": HONEST}, {"fp8": CHEAT}, topk=128)
    assert made["thresholds"] == {"exp_mismatches": 5, "mant_err_mean": 1.25, "mant_err_median": 1.25}
    assert made["false_reject_rate_below"] == pytest.approx(0.95)
    row = made["cheats"]["fp8"]
    assert (row["responses"], row["passed"], row["passed_by_default"]) == (2, 1, 2)
    assert row["largest"] == {"exp_mismatches": 20, "mant_err_mean": 6.0, "mant_err_median": 4}
    assert row["false_accept_rate_below"] == pytest.approx(0.975, abs=1e-3)
    assert (made["honest"]["base"]["passed"], made["honest"]["base"]["mean"]["exp_mismatches"]) == (1, 0)
    assert "fp8" in toploc.table(made)


def test_thresholds_are_judged_on_other_responses() -> None:
    """Every other one: those that gave the thresholds pass whatever they are worth."""
    quiet, loud = response((1, 0.5, 0)), response((9, 3.0, 2))
    made: Any = report({"base": [quiet, loud] * 10, "other": [quiet, quiet]}, {}, topk=128)
    assert [made["honest"][name]["passed"] for name in ("base", "other")] == [0, 1]
    assert made["false_reject_rate_below"] > 10 / 11
    made = report({"base": [quiet] * 20}, {}, topk=128)
    assert made["false_reject_rate_below"] == pytest.approx(1 - 0.05**0.1)


@pytest.mark.parametrize(("seen", "count"), [(0, 1), (0, 500), (1, 30), (94, 250), (199, 200)])
def test_bound_of_a_rate(seen: int, count: int) -> None:
    """So few events, or fewer, would be a chance of one in twenty; against exact fractions."""
    from fractions import Fraction
    from math import comb

    rate = Fraction(rate_below(seen, count))
    chance = sum(comb(count, i) * rate**i * (1 - rate) ** (count - i) for i in range(seen + 1))
    assert float(chance) == pytest.approx(0.05, rel=1e-6)
    assert rate_below(count, count) == 1


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("int8", 0.001, 0.02), ("fp8", 0.01, 0.05), ("int4", 0.05, 0.25)]
)
def test_rounded_weights(tmp_path: Path, precision: str, least: float, most: float) -> None:
    """Matrices are rounded as much as the format does; embeddings, norms and other files stay."""
    weights = {
        "layer.weight": torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).bfloat16(),
        "embed_tokens.weight": torch.randn(10, 256).bfloat16(),
        "norm.weight": torch.randn(256).bfloat16(),
    }
    model, copy = tmp_path / "model", tmp_path / "copy"
    model.mkdir()
    copy.mkdir()
    save_file(weights, model / "model.safetensors")
    (model / "config.json").write_text('{"num_hidden_layers": 3}')
    cheats.requantize(model, copy, precision)
    found = load_file(copy / "model.safetensors")
    error = (found["layer.weight"] - weights["layer.weight"]).float().norm() / weights["layer.weight"].float().norm()
    assert least < error < most
    assert found["layer.weight"].dtype is torch.bfloat16
    for name in ("embed_tokens.weight", "norm.weight"):
        assert torch.equal(found[name], weights[name])
    cheats.without_last_layer(model, copy)
    assert json.loads((copy / "config.json").read_text()) == {"num_hidden_layers": 2}
    assert torch.equal(load_file(copy / "model.safetensors")["layer.weight"], weights["layer.weight"])


def test_tampering() -> None:
    """One token is another; everything else stays."""
    honest = Response([1, 2, 3, 4], [5, 6, 7], ["f"])
    prompt, answer = tamper(honest, "changed prompt"), tamper(honest, "changed early token")
    assert [a != b for a, b in zip(prompt.input_ids, honest.input_ids, strict=True)] == [False, False, True, False]
    assert prompt.output_ids == honest.output_ids
    assert [a != b for a, b in zip(answer.output_ids, honest.output_ids, strict=True)] == [False, True, False]
    assert answer.fingerprints == honest.fingerprints
    hidden = tamper(honest._replace(input_ids=list(range(20))), "hidden instruction")
    assert hidden.input_ids == list(range(8, 20))


def test_prompts_are_the_same_each_time() -> None:
    """And each is another."""
    assert prompts(30) == prompts(30)
    assert len(set(prompts(30))) == 30


def test_an_unknown_cheat(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The message says which there are, before any server is started."""
    options = ["--model-path", str(tmp_path), "--output", str(tmp_path / "out.json"), "--cheats", "int8,lies"]
    from tessera.cli import main

    assert main(["toploc", "calibrate", *options]) == 2
    assert "no cheat lies; there are int8, fp8, int4" in capsys.readouterr().out


IDS: dict[str, Any] = {"input_ids": [1], "output_ids": [2]}
PRINTS: dict[str, Any] = {"toploc_verification_fingerprints": ["f"]}


@pytest.mark.parametrize(
    "saved",
    [
        {"text": "x", "meta_info": {**IDS, **PRINTS}},
        [{"meta_info": {**IDS, **PRINTS}}],
        {"choices": [{**IDS, "message": {"content": "x", **PRINTS}}]},
        {"choices": [{**IDS, **PRINTS, "text": "x"}]},
    ],
)
def test_saved_responses(saved: Any) -> None:
    """Of each route; one claim for each response in it."""
    assert verify.read(saved) == [{**IDS, "fingerprints": ["f"]}]
    assert verify.read(saved, "n")[0]["nonce"] == "n"
    assert verify.read(saved, lora_path="a") == [{**IDS, "fingerprints": ["f"], "lora_path": "a"}]


@pytest.mark.parametrize(
    "saved", [{}, {"choices": [{}]}, {"meta_info": {**IDS}}, {"choices": [{**PRINTS}]}, {"meta_info": 1}]
)
def test_saved_responses_without_what_is_needed(saved: Any) -> None:
    """The message says what to ask for."""
    with pytest.raises(ValueError, match="was not asked for with return_"):
        verify.read(saved)


_WITHOUT_FINGERPRINTS: list[Any] = [
    {"choices": 7},
    {"choices": [{"message": 7}]},
    {"choices": [{**IDS, "message": "x"}]},
]


@pytest.mark.parametrize("saved", [7, None, [7], "x", [[]], *_WITHOUT_FINGERPRINTS])
def test_what_is_no_response_cannot_be_verified(saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit status 2; 1 would say that it fails."""
    from tessera.cli import main

    path = tmp_path / "response.json"
    path.write_text(json.dumps(saved))
    assert main(["verify", str(path), "--server", "http://127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    expected = "was not asked for with return_" if saved in _WITHOUT_FINGERPRINTS else "no response"
    assert expected in line


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://[", "http://127.0.0.1:99999999", "no url"])
def test_a_malformed_url_verifies_nothing(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither."""
    from tessera.cli import main

    path = tmp_path / "response.json"
    path.write_text(json.dumps({"meta_info": {**IDS, **PRINTS}}))
    assert main(["verify", str(path), "--server", url]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("cannot be verified: ")


@pytest.mark.parametrize("results", [7, [7], [{}], [{"verdict": "pass", "reason": "", "statistics": [1]}], {"a": 1}])
def test_a_strange_server_verifies_nothing(results: Any) -> None:
    """What answers may be another program."""
    with pytest.raises(ValueError, match="no answer of /v1/toploc/verify"):
        verify.table(results)


def test_table() -> None:
    """A line for each fingerprint, and what is allowed."""
    one = {"exp_mismatches": 1, "mant_err_mean": 0.5, "mant_err_median": 0.25}
    text = verify.table([{"verdict": "fail", "reason": "why", "statistics": [one, one], "thresholds": one}])
    assert "response 0: FAIL why" in text
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["prompt", "tokens", "at"]
