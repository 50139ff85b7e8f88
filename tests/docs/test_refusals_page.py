"""The page of what became of refused options: each has its proof, there or in a test that it names."""

from __future__ import annotations

import ast
import json
import re

import pytest

from tessera_testing import trials_page
from tessera_testing.pages import ROOT
from tessera_testing.trials_page import PROOFS, Cell, sections, trials


def test_each_refusal_has_its_proof() -> None:
    """Something came of it that nobody wants, SGLang alone does not serve it, or a test says why it is refused."""
    unproven = [
        f"{title}: {cell.option}: {cell.text}"
        for title, cells in sections().items()
        for cell in cells
        if not cell.is_proven
    ]
    assert unproven == []


@pytest.mark.parametrize("proof", sorted(set(PROOFS.values())))
def test_proofs_exist(proof: str) -> None:
    """A file, and a test in it."""
    file, _, test = proof.partition("::")
    text = (ROOT / file).read_text()
    assert not test or test in {one.name for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef)}


def test_proofs_are_of_what_is_refused() -> None:
    """One of an option that is served, or that is called otherwise, is removed."""
    refused = {(cell.option, cell.proof) for cells in sections().values() for cell in cells if not cell.served}
    assert {(option, proof) for (_, option), proof in PROOFS.items()} <= refused


@pytest.mark.parametrize(
    ("said", "proven"),
    [
        ({}, False),
        ({"": "exact: 49 vectors, least cosine 0.999961"}, False),
        ({"0.5.17, without a GPU": "exact: 49 vectors"}, False),
        ({"": "7 of 49 vectors wrong", "without a GPU": "exact: 98 vectors"}, True),
        ({"": "SGLang alone does not start: ValueError"}, True),
    ],
)
def test_what_counts_as_a_proof(said: dict[str, str], *, proven: bool) -> None:
    """Vectors that are right are none, and nothing is none."""
    assert Cell("--option", said, served=False, proof="").is_proven is proven
    assert Cell("--option", said, served=False, proof="tests/x.py::test_y").is_proven
    assert Cell("--option", said, served=True, proof="").is_proven


def test_a_trial_without_a_gpu_replaces_none_on_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both are shown where they differ."""
    file = tmp_path_factory.mktemp("results") / "lines.jsonl"
    tried = {"option": "--x", "model": "dense", "stock": "serves"}
    lines = [
        *({"gpu": "H200"}, tried | {"rows": "7 of 49 vectors wrong"}),
        *({"gpu": "none"}, tried | {"rows": "exact: 98 vectors"}),
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = trials_page._outcomes(trials((str(file),)), "--x", "rows")
    assert found == {"": "7 of 49 vectors wrong", "without a GPU": "exact: 98 vectors"}


def test_rows_of_replayed_states_are_further_off() -> None:
    """With --enable-linear-replayssm-spec, than with the same drafts alone: one model, one GPU, the same prompts."""

    def least(option: str) -> float:
        (line,) = (line for line in lines if line.get("option") == option)
        assert line["model"] == "Qwen3-Next"
        return float(re.search(r"least cosine ([\d.]+)", line["rows"])[1])  # type: ignore[index]

    lines = [json.loads(line) for line in (ROOT / trials_page.TRIALS[2]).read_text().splitlines()]
    alone, replayed = (
        least("--speculative-algorithm beside state"),
        least("--enable-linear-replayssm-spec beside state"),
    )
    assert (1 - replayed) / (1 - alone) > 4
