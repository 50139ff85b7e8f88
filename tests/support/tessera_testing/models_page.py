"""The tables of docs/reference/models.md: architectures on any machine, and cells that suites ran on borrowed GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tessera_testing.architectures import ARCHITECTURES, WITH_ADAPTERS, on_a_gpu, with_adapter
from tessera_testing.pages import DOCS, ROOT, table
from tessera_testing.suite_runs import Run, latest

MODELS = DOCS / "reference" / "models.json"
"""What `tests/engine_cpu/test_models.py` has found, by architecture."""
_UNRECORDED = "not recorded"


class Cell(NamedTuple):
    """What a suite tries.

    Attributes:
        what: in words.
        suite: its name in ``benchmarks/host/other_session.sh``.
        ranks: whether it has two, which share a GPU where there is one.
    """

    what: str
    suite: str
    ranks: bool = False


CELLS = (
    Cell("pages of 1 slot, FlashAttention 3: rows", "embeddings-fa3"),
    Cell("pages of 1 slot, Triton: rows", "embeddings-triton"),
    Cell("SGLang's own chains of drafts: rows", "fa3-chain"),
    Cell("SGLang's own trees of drafts: rows", "fa3-tree"),
    Cell("TileSpec's chains: tokens", "fa3-eagle"),
    Cell("TileSpec's trees: tokens", "trees-triton"),
    Cell("fingerprints, exact mode", "fingerprints"),
    Cell("injection", "injection"),
    *(
        Cell(f"pages of {page} slots{drafts}: rows, fingerprints{also}", f"kv-{page}-{kind}")
        for page in (16, 64, 128)
        for kind, drafts, also in (
            ("plain", "", ", injection"),
            ("chain", ", TileSpec's chains", ""),
            ("tree", ", TileSpec's trees", ""),
        )
    ),
    Cell("rows on the host, pages of 16: rows, fingerprints, injection", "kv-16-plain-on-host"),
    Cell("rows on the host, pages of 16, TileSpec's chains: rows, fingerprints", "kv-16-chain-on-host"),
    Cell("FP8 KV cache: rows, log-probabilities, fingerprints", "fp8-kv"),
    Cell("FP8 weights: the same", "fp8-weights"),
    Cell("AWQ weights, float16: the same", "awq"),
    Cell("LoRA on Llama and on Qwen3-MoE (attention; experts too), float16: rows, injection", "injection-lora"),
    Cell("host's cache, pages of 1 and 64: rows", "host-cache"),
    Cell("host's cache, pages of 1 and 64, EAGLE's chains: rows", "host-cache-drafts"),
    Cell("Qwen3, `--pp-size 2`: rows, fingerprints", "stages", ranks=True),
    Cell("Qwen3, `--enable-dp-attention`: rows, fingerprints, injection", "dp-attention", ranks=True),
    Cell("Qwen3-MoE, experts on two ranks: rows, fingerprints, injection", "ranks-experts", ranks=True),
)
"""Of a tiny Llama where no other model is named."""


def architectures() -> str:
    """Lines for each that `tests/engine_cpu/test_models.py` has tried: without a GPU, on one, or on both."""
    head = ("architecture", "rows: largest relative error", "injection: the same", "on", "SGLang", "date", "commit")
    tried = json.loads(MODELS.read_text())
    names = (*ARCHITECTURES, *(with_adapter(name) for name in WITH_ADAPTERS))
    found = ((name, [tried[key] for key in (name, on_a_gpu(name)) if key in tried]) for name in names)
    return table(head, *(cells for name, lines in found for cells in _lines(name, lines)))


def _lines(name: str, found: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    if not found:
        absent = ARCHITECTURES[name].absent if name in ARCHITECTURES else ""
        yield name, f"not tried: {absent}", "", "", "", "", ""
    yield from (_line(name, one) for one in found)


def _line(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    errors = {what: error for what, error in found["errors"].items() if what != "injection"}
    worst = max(errors, key=lambda what: errors[what])
    rounding = found.get("rounding", {})
    remarks = [f"Hugging Face's own {rounding[worst]:.3g}" if rounding else "", found["remark"]]
    remark = "; ".join(filter(None, remarks))
    return (
        name,
        _shown(errors[worst]) + (f": {remark}" if remark else ""),
        _injected(found, rounding),
        found["device"],
        found["versions"]["sglang"],
        found["date"][:10],
        found["commit"] or _UNRECORDED,
    )


def _injected(found: dict[str, Any], rounding: dict[str, float]) -> str:
    own = f": Hugging Face's own {rounding['injection']:.3g}" if rounding else ""
    return _shown(found["errors"]["injection"]) + own


def _shown(error: float) -> str:
    """One digit where only the size matters, three of an error that is compared with another."""
    return f"{error:.0e}" if error < 1e-4 else f"{error:.3g}"


def cells() -> str:
    """One line for each run of `CELLS`, the last with each version of SGLang."""
    head = ("what", "SGLang", "tests", "measured", "GPU", "date", "commit")
    return table(head, *(_cell(cell, run) for cell in CELLS for run in _runs(cell)))


def _runs(cell: Cell) -> Iterator[Run]:
    yield from latest(cell.suite, by_gpus=cell.ranks)


def _cell(cell: Cell, run: Run) -> tuple[str, ...]:
    ranks = {"one": ", both ranks on one", "two": ", two"}[run.gpus] if cell.ranks else ""
    return (
        cell.what,
        run.sglang,
        run.outcome(),
        ", ".join(run.measured()),
        run.gpu + ranks,
        f"[{run.date}](../../{run.log.relative_to(ROOT)})",
        run.commit or _UNRECORDED,
    )
