"""`make test-peers`: what servers of SGLang's tests are started with, and what counts as broken by us."""

from __future__ import annotations

import base64
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import peers_options
import peers_run
import pytest
import torch
from peers_options import EVERYTHING, HIDDEN, OURS, STOCK, TILE_SPEC, TINY, server_options
from peers_report import Side, load, report
from peers_toploc import CALLS, pytest_configure
from safetensors.torch import load_file

from tessera.capabilities.fingerprints import codec
from tessera_testing.librarys import WHY_SKIPPED

EAGLE3 = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "lmsys/sglang-EAGLE3-LLaMA3.1")


def write(path: Path, outcomes: dict[str, str], end: str = "status 1") -> None:
    """Records as the plugin leaves them."""
    lines = [json.dumps({"id": test, "outcome": outcome, "text": "E boom"}) for test, outcome in outcomes.items()]
    path.write_text("\n".join([*lines, json.dumps({"end": end})]) + "\n")


def test_options_of_a_gpu_go_and_ours_come() -> None:
    """TemporaryFields go with their names, in both spellings."""
    given = ("--dtype", "bfloat16", "--mem-fraction-static=0.7", "--disable-cuda-graph", "--max-running-requests", 2)
    stock = server_options(given, STOCK, 600)
    assert "bfloat16" not in stock
    assert "0.7" not in " ".join(stock)
    assert "--disable-cuda-graph" not in stock
    assert stock[:4] == ["--max-running-requests", "2", "--max-total-tokens", "16384"]
    assert not {HIDDEN, *OURS, TILE_SPEC} & {*stock}
    assert server_options(given, EVERYTHING, 600) == [*stock, HIDDEN, *OURS]
    assert HIDDEN in server_options([HIDDEN], STOCK, 600)
    assert server_options(("--max-running-requests", 8), STOCK, 600) == server_options((), STOCK, 600)


def test_requests_are_cut_where_a_test_sets_no_context() -> None:
    """One that sets it has its own errors for what is longer."""
    assert "--allow-auto-truncate" in server_options((), STOCK, 600)
    own = server_options(("--context-length", "1000"), STOCK, 600)
    assert "--allow-auto-truncate" not in own
    assert "600" not in own


def test_a_server_that_drafts_sizes_itself() -> None:
    """With a draft model that is here, and only on our side."""
    options = server_options(EAGLE3, EVERYTHING, 600)
    assert options[-1] == TILE_SPEC
    assert str(peers_options.MODELS / "tiny-eagle3") in options
    assert TILE_SPEC not in server_options(EAGLE3, STOCK, 600)
    assert TILE_SPEC not in server_options(("--speculative-algorithm=NGRAM",), EVERYTHING, 600)
    assert TILE_SPEC in server_options(("--speculative-algorithm=EAGLE",), EVERYTHING, 600)


def test_names_of_the_hub_are_folders() -> None:
    """A folder stays."""
    assert peers_options.local("Qwen/Qwen3-0.6B") == str(TINY)
    assert peers_options.local(str(TINY.parent)) == str(TINY.parent)


def test_what_counts_as_broken(tmp_path: Path) -> None:
    """What passes on stock, and neither with everything on nor at a second try; also what was cut off."""
    stock = {"a.py::good": "passed", "a.py::bad": "passed", "a.py::flaky": "passed", "a.py::lost": "passed"}
    write(tmp_path / "g.stock.jsonl", {**stock, "a.py::neither": "failed", "a.py::gpu": "skipped"})
    ours = {"a.py::good": "passed", "a.py::bad": "failed", "a.py::flaky": "failed", "a.py::neither": "failed"}
    write(tmp_path / "g.everything.jsonl", ours, "cut off by its time limit")
    pair = load(tmp_path, "g")
    assert pair.different() == pair.broken() == ["a.py::bad", "a.py::flaky", "a.py::lost"]
    write(tmp_path / "g.stock.again.jsonl", {"a.py::bad": "passed", "a.py::flaky": "passed"})
    write(tmp_path / "g.everything.again.jsonl", {"a.py::bad": "failed", "a.py::flaky": "passed"})
    pair = load(tmp_path, "g")
    assert pair.broken() == ["a.py::bad", "a.py::lost"]
    excluded = [{"files": ["b.py"], "why": "a GPU"}, {"tests": ["c.py::D"], "why": "a mock"}]
    page, broken = report({"g": pair}, excluded, "0.5.17")
    assert broken == 2
    assert "1 files, 1 with tests that pass; 1 tests pass with everything on, 3 do not: **2 of these pass on" in page
    assert "| `a.py` | 1 | 3 | 2 |" in page
    assert "- `a.py::flaky`" in page.split("## Passed at the second try")[1]
    assert "- g, everything: cut off by its time limit" in page
    assert "| `b.py` | a GPU |\n| `c.py::D` | a mock |" in page


def test_a_file_that_is_not_collected_has_failed(tmp_path: Path) -> None:
    """Then none of its tests has an outcome of its own. A failed sub-test is its test's failure."""
    write(tmp_path / "g.stock.jsonl", {"a.py::one": "passed"})
    write(tmp_path / "g.everything.jsonl", {"a.py": "failed"})
    assert load(tmp_path, "g").broken() == ["a.py::one"]
    path = tmp_path / "twice.jsonl"
    records = [{"id": "t", "outcome": outcome} for outcome in ("passed", "failed", "passed")]
    path.write_text("\n".join(map(json.dumps, records)))
    assert Side.read(path).of("t") == "failed"


def test_a_checkout_is_copied_with_other_words(tmp_path: Path) -> None:
    """The tests are copies; the rest of the checkout is reachable from them."""
    tests = tmp_path / "sglang/test/registered/rl"
    tests.mkdir(parents=True)
    (tests / "test_a.py").write_text('device = "cuda"')
    (tests.parent / "mlx").mkdir()
    (tmp_path / "sglang/python").mkdir()
    work = peers_run.prepared(tmp_path / "sglang", tmp_path / "work", {"rl/*.py": {'"cuda"': '"cpu"'}})
    assert (work / "test/registered/rl/test_a.py").read_text() == 'device = "cpu"'
    assert not (work / "test/registered/mlx").exists()
    assert (work / "python").resolve() == tmp_path / "sglang/python"
    with pytest.raises(SystemExit, match="no file has 'nccl'"):
        peers_run.prepared(tmp_path / "sglang", tmp_path / "work", {"rl/*.py": {"nccl": "gloo"}})
    with pytest.raises(SystemExit, match="give a checkout of SGLang"):
        peers_run.prepared(tmp_path / "sglang/python", tmp_path / "other", {})


def test_models_of_the_tests(tmp_path: Path) -> None:
    """The model is ours; the one that tests find by its name has other weights of the same names and shapes."""
    peers_run.models(tmp_path)
    own, other = (load_file(tmp_path / name / "model.safetensors") for name in ("tiny-Instruct", "tiny"))
    assert {name: weight.shape for name, weight in own.items()} == {name: w.shape for name, w in other.items()}
    assert not any(torch.equal(own[name], other[name]) for name in own)
    adapter = json.loads((tmp_path / peers_options.ADAPTER.name / "adapter_config.json").read_text())
    assert adapter["peft_type"] == "LORA"


def test_the_plan_is_well_formed() -> None:
    """Groups have the fields of `Group` and names of their own; each exclusion says what and why."""
    plan = tomllib.loads(peers_run.PLAN.read_text())
    groups = [peers_run.Group(**group) for group in plan["group"]]
    assert len({group.name for group in groups}) == len(groups)
    for entry in plan["excluded"]:
        assert entry["why"]
        assert entry.get("files") or entry.get("tests")


@pytest.fixture
def replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library toploc with our codec and verifier in place of its own, and where calls are noted."""
    poly: Any = pytest.importorskip("toploc.poly", reason=WHY_SKIPPED, exc_type=ImportError)
    import toploc

    for module in (toploc, poly):
        for name in [name for name in vars(module) if name.startswith(("build_proofs", "verify_proofs"))]:
            monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    path = tmp_path / "calls.jsonl"
    monkeypatch.setitem(os.environ, CALLS, str(path))
    pytest_configure()
    return path


def test_proofs_and_verdicts_of_both_libraries_are_compared(replaced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are equal; and a codec of ours that is wrong shows."""
    import toploc

    torch.manual_seed(1)
    rows: Any = [torch.randn(3, 16, dtype=torch.bfloat16), *(torch.randn(16, dtype=torch.bfloat16) for _ in range(5))]
    proofs = toploc.build_proofs_base64(rows, decode_batching_size=2, topk=5)
    found = toploc.verify_proofs_base64([row * 1.01 for row in rows], proofs, decode_batching_size=2, topk=5)
    assert len(base64.b64decode(proofs[0])) == 12
    assert all(one.exp_mismatches == 0 and one.mant_err_mean > 0 for one in found)
    build = codec.build
    monkeypatch.setattr("peers_toploc.build", lambda points: build(points)[::-1])
    toploc.build_proofs_base64(rows, decode_batching_size=2, topk=5)
    records = [json.loads(line) for line in replaced.read_text().splitlines()]
    assert records[:2] == [{"proofs": 4, "different": 0}, {"verdicts": 4, "different": 0}]
    assert records[2]["different"] > 0
    assert np.isfinite([one.mant_err_mean for one in found]).all()
