"""The page docs/measurements/refusals.md: what became of each refused option where nothing refused it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping

from tessera.capabilities.inject import refusals as injection
from tessera.refusal import Refusal
from tessera.rows import refusals as rows
from tessera.tilespec import refusals as tilespec
from tessera_patches.launch import default_deny
from tessera_testing.pages import ROOT, table

TRIALS = (
    "benchmarks/results/current/2026-11-29-h200/refused-0.5.23.jsonl",
    "benchmarks/results/current/2026-11-29-cpu/refused-0.5.23.jsonl",
    "benchmarks/results/current/2026-11-30-h200/refused-0.5.23.jsonl",
    "benchmarks/results/current/2026-11-30-cpu/refused-0.5.23.jsonl",
    "benchmarks/results/current/2026-11-30-h200/refused-beside-state-0.5.23.jsonl",
    "benchmarks/results/current/2026-12-01-cpu/refused-0.5.23.jsonl",
)
"""What `benchmarks/refused_options.py` found. A later line replaces an earlier one; of the same model, what it says."""
CHECKPOINTS = "benchmarks/results/current/2026-11-30-cpu/state-checkpoints.jsonl"
"""Rows after a cached prefix whose state was rounded."""
EARLIER = (
    "benchmarks/results/current/2026-12-01-h200/refused-0.5.17.jsonl",
    "benchmarks/results/current/2026-12-01-cpu/refused-0.5.17.jsonl",
    "benchmarks/results/current/2026-11-30-cpu/refused-0.5.17.jsonl",
)
"""The same with SGLang 0.5.17, for what is refused there alone, and what was. Here an earlier line counts."""
STATES = "benchmarks/results/current/2026-12-01-h200/state-prefixes-0.5.17.jsonl"
"""Log-probabilities and rows of 0.5.17 by how it keeps states."""
SERVED = (
    "--boundary-reduction",
    "--enable-paged-experts",
    "--enable-response-store",
    "--enable-watermark",
    "--gated-launch-port",
    "--nnodes",
    "--speculative-use-block-verification",
    "--swa-prefix-tails",
)
_DRAFTS_BESIDE_STATE = tuple(f"--speculative-algorithm {name}" for name in ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM"))
SERVED_BESIDE_STATE = (*_DRAFTS_BESIDE_STATE, "--enable-dp-attention", "--enable-streaming-session", "--pp-size")
"""Once refused."""
MODELS = {
    "rows": ("models whose layers all have windows",),
    "tilespec": ("models with Mamba or linear-attention state",),
}
"""What is refused by a model's configuration."""
VARIABLES = {
    "rows": ("SGLANG_RUST_SERVER",),
    "inject": ("SGLANG_RUST_SERVER",),
    "tilespec": tuple(tilespec.ENVIRONMENT),
}
"""What is refused of the environment."""
BELONGS = {
    "--grpc-mode": "--smg-grpc-mode",
    "--unified-cache-external-linker-": "--enable-unified-cache-external-linker",
    "--uno-lora-path": "--speculative-algorithm",
    "--aux-hidden-state-capture": "--enable-return-aux-hidden-states",
    "--return-aux-hidden-state-layer-ids": "--enable-return-aux-hidden-states",
}
"""Options that do nothing without another one, by how they begin."""
RENAMED = {"--speculative-algorithm beside state": "--speculative-algorithm NGRAM beside state"}
"""What later trials are called."""
_BESIDE = " beside state"
_INTRODUCTION = """\
<!-- Generated: python -m tessera_testing.page_tables. A test compares. -->
# Refused options, tried

Why [options are refused](../reference/refusals.md), by experiment: `benchmarks/refused_options.py` starts SGLang 0.5.23
with each, then Tessera with its refusals switched off, sends 60 requests (where 98 vectors were compared, with a second
turn of each), and compares their vectors with transformers. Tiny models; H200 ([one](../../{0}),
[two](../../{2}), [three](../../{4})), a few without a GPU, in float32
([1](../../{1}), [2](../../{3}), [3](../../{5})).

"SGLang alone does not start" is about this host and these models: nothing could be tried. What is exact and refused is
refused for what such requests do not show, or with older versions of SGLang. "Nothing" is the same without any option:
some vectors of some models differ from transformers' by more than the limit. Beside state the limit is 0.99, and
`--pp-size` is without a GPU: with one, SGLang alone does not start (IndexError).

Some were tried by hand as well. Of a prompt of 300 tokens, 299 come back by `--hicache-storage-backend`, whose rows
are wrong; with injected vectors they come back with their own log-probabilities. Prefill-decode disaggregation: NIXL
over TCP, two servers without a GPU, behind SGLang's router. With `--enable-int8-mamba-checkpoint`, the first row after
a cached prefix of 128 tokens is off by 1.2e-3 to 1.2e-2 ([sixteen prompts](../../{6})); without it, by at most 8.6e-6.

With SGLang 0.5.17 on a GPU, what follows a cached prefix is wrong where a model has linear attention: SGLang's own
[log-probabilities](../../{7}) are off by up to 3.4 after 4 of 60 prompts, with `no_buffer` or without the prefix cache
by 0.19, where all rows are right.
"""


def page() -> str:
    """The page."""
    tried = trials()
    always = [f"--{name.replace('_', '-')}" for name in default_deny.lists().refused]
    beside = ["nothing", *_beside_state(rows.BESIDE_STATE), *SERVED_BESIDE_STATE]
    injected_beside = ["nothing", *_beside_state(injection.BESIDE_STATE), *_DRAFTS_BESIDE_STATE]
    refused = {
        feature: [*(one.option for one in options), *MODELS.get(feature, ()), *VARIABLES[feature]]
        for feature, options in (
            ("rows", rows.REFUSALS),
            ("inject", injection.REFUSALS),
            ("tilespec", (*tilespec.REFUSALS, Refusal("--disable-cuda-graph", ""))),
        )
    }
    parts = [
        ("Embeddings, hidden states, fingerprints", refused["rows"], "rows", ""),
        ("Models with Mamba or linear-attention state", beside, "rows", _BESIDE),
        ("Injection", ["nothing with experts", *refused["inject"]], "inject", ""),
        ("Injection beside Mamba or linear-attention state", injected_beside, "inject", _BESIDE),
        ("TileSpec", refused["tilespec"], "tilespec", ""),
        ("Any feature", ["nothing with windows", *always, *SERVED], "rows", ""),
    ]
    tables = (_table(title, options, tried, feature, more) for title, options, feature, more in parts)
    return "\n".join([_INTRODUCTION.format(*TRIALS, CHECKPOINTS, STATES), *tables, _of_earlier()])


def _of_earlier() -> str:
    """What was tried with 0.5.17, where it serves by itself or never would; and what came of each feature."""
    lines = [json.loads(line) for file in reversed(EARLIER) for line in (ROOT / file).read_text().splitlines()]
    tried = {line["option"]: line for line in lines if "option" in line}
    rows_of = []
    for option in sorted(tried):
        cells = [_outcome(tried, option, feature) for feature in ("rows", "inject", "tilespec")]
        if not re.search("NVIDIA|ninja|needs SGLang", cells[0]):
            name = option.removesuffix(_BESIDE)
            others = ("" if cell.startswith("SGLang alone") else cell for cell in cells[1:])
            rows_of.append((f"`{name}`{option[len(name) :]}", cells[0], *others))
    files = ", ".join(f"[{number}](../../{file})" for number, file in enumerate(EARLIER, 1))
    head = ("option", "embeddings, fingerprints", "injection", "TileSpec")
    return f"## SGLang 0.5.17\n\nThe first file is of a GPU: {files}.\n\n{table(head, *rows_of)}"


def _beside_state(refusals: Iterable[Refusal]) -> list[str]:
    """Their options; drafts have a line for each algorithm, and none of them all."""
    return [one.option for one in refusals if one.option != "--speculative-algorithm"]


def trials() -> dict[str, dict[str, str]]:
    """What was tried, by the names that options have there."""
    lines = (json.loads(line) for file in TRIALS for line in (ROOT / file).read_text().splitlines())
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if option := line.get("option"):
            name = RENAMED.get(option, option)
            before = found.get(name, {})
            found[name] = before | line if before.get("model") == line["model"] else line
    return found


def _table(title: str, options: Iterable[str], tried: Mapping[str, Mapping[str, str]], feature: str, more: str) -> str:
    found = (
        (f"`{option}`" if option.startswith(("--", "SGLANG")) else option, _outcome(tried, option + more, feature))
        for option in options
    )
    return f"## {title}\n\n{table(('option', 'when it was not refused'), *found)}"


def _outcome(tried: Mapping[str, Mapping[str, str]], option: str, feature: str) -> str:
    """What came of an option; of several values of one, the first."""
    if whose := next((other for start, other in BELONGS.items() if option.startswith(start)), ""):
        return f"see `{whose}`"
    base = option.removesuffix(" above 1")
    names = [name for name in tried if name in {option, base} or re.fullmatch(rf"{base} [a-zA-Z]\w+", name)]
    for name in sorted(
        names, key=lambda name: (feature not in tried[name], tried[name].get("stock") == "serves", name != option)
    ):
        drafting = tried[name].get("stock with drafts") if feature == "tilespec" else None
        stock = drafting or tried[name].get("stock")
        if said := tried[name].get(feature) or (stock and f"SGLang alone {stock}"):
            said = re.sub("not ready in time; .*", "not ready in time", said)
            said = re.sub(r"tessera: timing graphs: .*?\]", "", said)  # a progress bar
            return textwrap.shorten(said.replace("`", ""), 160, placeholder=" …")
    return "not tried"
