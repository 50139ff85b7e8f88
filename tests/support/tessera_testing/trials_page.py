"""The page docs/measurements/refusals.md: what became of each refused option where nothing refused it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping

from tessera.capabilities.inject import refusals as injection
from tessera.rows import refusals as rows
from tessera.tilespec import refusals as tilespec
from tessera_patches.launch import default_deny
from tessera_testing.pages import ROOT, table

TRIALS = (
    "benchmarks/results/current/2026-11-29-h200/refused-0.5.23.jsonl",
    "benchmarks/results/current/2026-11-29-cpu/refused-0.5.23.jsonl",
)
"""What `benchmarks/refused_options.py` found; lines of a later file replace those of an earlier one."""
BELONGS = {
    "--watermark-": "--enable-watermark",
    "--paged-experts-": "--enable-paged-experts",
    "--unified-cache-external-linker-": "--enable-unified-cache-external-linker",
    "--uno-lora-path": "--speculative-algorithm",
    "--aux-hidden-state-capture": "--enable-return-aux-hidden-states",
    "--return-aux-hidden-state-layer-ids": "--enable-return-aux-hidden-states",
}
"""Options that do nothing without another one, by how they begin."""
_BESIDE = " beside state"
_INTRODUCTION = """\
<!-- Generated: python -m tessera_testing.page_tables. A test compares. -->
# Refused options, tried

Why [options are refused](../reference/refusals.md), by experiment: `benchmarks/refused_options.py` starts SGLang 0.5.23
with each, then Tessera with its refusals switched off, sends 60 requests at once, and compares their vectors with
transformers. Tiny models; one H200 ([results](../../{0})), where two ranks share it; a few without a GPU, in float32
([results](../../{1})).

"SGLang alone does not start" is about this host and these models: nothing could be tried. Where vectors are exact, and
the option is refused, its reason is something that such requests do not show. Of models with state, cosines of 0.998 on
the GPU are bfloat16's; in float32 SGLang does not start them there.

Prefill-decode disaggregation was tried by hand: NIXL over TCP, two servers without a GPU, behind SGLang's router.
"""


def page() -> str:
    """The page."""
    tried = trials()
    always = [f"--{name.replace('_', '-')}" for name in default_deny.lists().refused]
    beside = ["nothing", *(one.option for one in rows.BESIDE_STATE)]
    parts = [
        ("Embeddings, hidden states, fingerprints", [one.option for one in rows.REFUSALS], "rows", ""),
        ("Models with Mamba or linear-attention state", beside, "rows", _BESIDE),
        ("Injection", [one.option for one in injection.REFUSALS], "inject", ""),
        ("TileSpec", [one.option for one in tilespec.REFUSALS], "tilespec", ""),
        ("Any feature", always, "rows", ""),
    ]
    tables = (_table(title, options, tried, feature, more) for title, options, feature, more in parts)
    return "\n".join([_INTRODUCTION.format(*TRIALS), *tables])


def trials() -> dict[str, dict[str, str]]:
    """What was tried, by the names that options have there."""
    lines = (json.loads(line) for file in TRIALS for line in (ROOT / file).read_text().splitlines())
    return {line["option"]: line for line in lines if "option" in line}


def _table(title: str, options: Iterable[str], tried: Mapping[str, Mapping[str, str]], feature: str, more: str) -> str:
    found = ((f"`{option}`", _outcome(tried, option + more, feature)) for option in options)
    return f"## {title}\n\n{table(('option', 'when it was not refused'), *found)}"


def _outcome(tried: Mapping[str, Mapping[str, str]], option: str, feature: str) -> str:
    """What came of an option; of several values of one, the first."""
    if whose := next((other for start, other in BELONGS.items() if option.startswith(start)), ""):
        return f"see `{whose}`"
    base = option.removesuffix(" above 1")
    names = [name for name in tried if name in {option, base} or re.fullmatch(rf"{base} [a-zA-Z]\w+", name)]
    for name in sorted(names, key=lambda name: (feature not in tried[name], name != option)):
        drafting = tried[name].get("stock with drafts") if feature == "tilespec" else None
        stock = drafting or tried[name].get("stock")
        if said := tried[name].get(feature) or (stock and f"SGLang alone {stock}"):
            return textwrap.shorten(said.replace("`", ""), 160, placeholder=" …")
    return "not tried"
