"""The page docs/measurements/refusals.md: what became of each refused option where nothing refused it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tessera.capabilities.inject import refusals as injection
from tessera.refusal import Refusal
from tessera.rows import refusals as rows
from tessera.tilespec import refusals as tilespec
from tessera_patches import support
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
"""What `benchmarks/refused_options.py` found. A later line replaces an earlier one with as much of a GPU; of the same
model, what it says."""
CHECKPOINTS = "benchmarks/results/current/2026-11-30-cpu/state-checkpoints.jsonl"
"""Rows after a cached prefix whose state was rounded."""
EARLIER = (
    "benchmarks/results/current/2026-11-30-cpu/refused-0.5.17.jsonl",
    "benchmarks/results/current/2026-12-01-cpu/refused-0.5.17.jsonl",
    "benchmarks/results/current/2026-12-01-h200/refused-0.5.17.jsonl",
)
"""The same with SGLang 0.5.17, for what is refused there alone, and what was."""
STATES = "benchmarks/results/current/2026-12-01-h200/state-prefixes-0.5.17.jsonl"
"""Log-probabilities and rows of 0.5.17 by how it keeps states."""
SERVED = (
    "--boundary-reduction",
    "--enable-decoder-swa-bounded-replay",
    "--enable-paged-experts",
    "--enable-response-store",
    "--enable-watermark",
    "--gated-launch-port",
    "--nnodes",
    "--speculative-use-block-verification",
    "--swa-prefix-tails",
)
_DRAFTS = tuple(f"--speculative-algorithm {name}" for name in ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM"))
SERVED_BESIDE_STATE = (*_DRAFTS, "--enable-dp-attention", "--enable-streaming-session", "--pp-size")
"""Once refused."""
MODELS = {
    "rows": ("models whose layers all have windows", "models with an encoder"),
    "tilespec": ("models with Mamba or linear-attention state",),
}
"""What is refused by a model's configuration."""
VARIABLES = {
    "rows": rows.ENVIRONMENT,
    "inject": injection.ENVIRONMENT,
    "tilespec": tilespec.ENVIRONMENT,
}
"""What is refused of the environment."""
_CONTRACT = "tests/contract/test_refused_by_source.py"
PROOFS = {
    ("", "--grpc-port"): f"{_CONTRACT}::test_a_grpc_server_has_none_of_the_apps_middleware",
    ("", "--enable-return-aux-hidden-states"): (
        f"{_CONTRACT}::test_states_of_other_layers_take_the_place_of_the_last_ones"
    ),
    ("rows", "--enable-int8-mamba-checkpoint beside state"): CHECKPOINTS,
    ("rows", "--enable-linear-replayssm-spec beside state"): (
        "tests/docs/test_refusals_page.py::test_rows_of_replayed_states_are_further_off"
    ),
    (
        "rows",
        "--enable-mamba-cache-stochastic-rounding beside state",
    ): f"{_CONTRACT}::test_states_are_rounded_by_chance",
    ("rows", "models with an encoder"): f"{_CONTRACT}::test_slots_of_an_encoder_have_no_tokens",
    ("inject", "SGLANG_ENABLE_REQUEST_DECOMPRESSION"): f"{_CONTRACT}::test_a_compressed_body_grows_without_a_limit",
    ("tilespec", "--speculative-draft-attention-backend fa3"): EARLIER[-1],
    ("tilespec", "--speculative-adaptive"): f"{_CONTRACT}::test_sglangs_own_sizing_is_not_asked",
    ("tilespec", "--speculative-use-block-verification"): (
        f"{_CONTRACT}::test_block_verification_is_read_where_tilespec_does_not_come"
    ),
    ("tilespec", "SGLANG_SIMULATE_ACC_LEN"): (
        "tests/contract/test_acceptance.py::test_an_acceptance_that_sglang_simulates_is_real"
    ),
    ("tilespec", "SGLANG_ENABLE_METADATA_GLUE_GRAPH"): f"{_CONTRACT}::test_offsets_of_a_verification_are_its_own",
    ("tilespec", "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"): f"{_CONTRACT}::test_a_verification_is_prepared_after_its_draft",
}
"""Where requests show nothing wrong, or none could be sent: the test, or the file of results, that shows why an option
is refused, by feature ("" is each) and option."""
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
ALIASES = {"--mamba-radix-cache-strategy extra_buffer beside state": "nothing beside state"}
"""Defaults, which are tried where nothing else is."""
VALUES = ("--disaggregation-mode", "--moe-a2a-backend", "--speculative-algorithm")
"""Options with a line for each value that was tried."""
_BESIDE = " beside state"
_LONGEST = 160
_INTRODUCTION = """\
<!-- Generated: python -m tessera_testing.page_tables. A test compares. -->
# Refused options, tried

Why [options are refused](../reference/refusals.md), by experiment: `benchmarks/refused_options.py` starts SGLang 0.5.23
with each, then Tessera with its refusals switched off, sends 60 requests (where 98 vectors were compared, with a second
turn of each), and compares their vectors with transformers. Tiny models; H200 ([one](../../{0}),
[two](../../{2}), [three](../../{4})) and without a GPU, in float32
([1](../../{1}), [2](../../{3}), [3](../../{5})). What came of an option without a GPU is shown where it was tried there
alone, or something else came of it.

"SGLang alone does not start" is about this host and these models: nothing could be tried. Where all vectors are right,
or none could be compared, "Why" names what shows the reason. What SGLang 0.5.17 alone refuses was tried with it.
"Nothing" is the same without any option: some vectors of some models differ from transformers' by more than the limit.
Beside state the limit is 0.99.

With `--hicache-storage-backend` a second server gets the prompts of a first one, whose KV it finds in storage.
Prefill-decode disaggregation was tried by hand, too: NIXL over TCP, two servers without a GPU, behind SGLang's router.
With `--enable-int8-mamba-checkpoint`, the first row after a cached prefix of 128 tokens is off by 1.2e-3 to 1.2e-2
([sixteen prompts](../../{6})); without it, by at most 8.6e-6.

With SGLang 0.5.17 on a GPU, what follows a cached prefix is wrong where a model has linear attention: SGLang's own
[log-probabilities](../../{7}) are off by up to 3.4 after 4 of 60 prompts, with `no_buffer` or without the prefix cache
by 0.19, where all rows are right.
"""


class Cell(NamedTuple):
    """What became of one option with one feature.

    Attributes:
        option: as it is refused, and where.
        said: the outcomes, by what they were found with; "" is a GPU, with the newest SGLang.
        served: whether it is not refused, or by another one's name.
        proof: a path, or a test, that shows why it is refused where the outcomes do not; "" if none is named.
    """

    option: str
    said: Mapping[str, str]
    served: bool
    proof: str

    @property
    def text(self) -> str:
        """As the page has it."""
        found = _joined(self.said) or "not tried"
        file, _, test = self.proof.partition("::")
        return f"{found}. Why: [{test or Path(file).name}](../../{file})" if self.proof else found

    @property
    def is_proven(self) -> bool:
        """Whether it is clear why it is refused: it failed, it could not be tried, or a proof is named."""
        return self.served or bool(self.proof) or (bool(self.said) and not all(map(_is_exact, self.said.values())))


Tried = Mapping[bool, Mapping[str, Mapping[str, str]]]
"""Lines of trials by option, with a GPU and without one."""


def page() -> str:
    """The page."""
    tables = (f"## {title}\n\n{_table(found)}" for title, found in sections().items())
    return "\n".join([_INTRODUCTION.format(*TRIALS, CHECKPOINTS, STATES), *tables, _of_earlier()])


def sections() -> dict[str, list[Cell]]:
    """Everything that is refused, by the part of the page, and what was."""
    windows = [_cell("nothing with windows", "rows", served=True)]
    beside = [_cell(name + _BESIDE, "rows", served=True) for name in ("nothing", *SERVED_BESIDE_STATE)]
    injected = [_cell(name + _BESIDE, "inject", served=True) for name in ("nothing", *_DRAFTS)]
    experts = [_cell("nothing with experts", "inject", served=True)]
    lacking = dict.fromkeys(support.OPTIONS[name].partition(" ")[0] for name in support.VERSIONS)
    always = [f"--{name.replace('_', '-')}" for name in default_deny.lists().refused]
    return {
        "Embeddings, hidden states, fingerprints": _refused("rows", rows.REFUSALS),
        "Models with Mamba or linear-attention state": [*beside, *_cells(rows.BESIDE_STATE, "rows", _BESIDE)],
        "Injection": [*experts, *_refused("inject", injection.REFUSALS)],
        "Injection beside Mamba or linear-attention state": [
            *injected,
            *_cells(injection.BESIDE_STATE, "inject", _BESIDE),
        ],
        "TileSpec": _refused("tilespec", (*tilespec.REFUSALS, Refusal("--disable-cuda-graph", ""))),
        "Any feature": [
            *windows,
            *_cells((Refusal(name, "") for name in always), "rows"),
            *(_cell(name, "rows", served=True) for name in SERVED),
        ],
        f"Refused with SGLang {support.OTHER} alone": [
            _cell(name, "rows", versions=f"<{support.DEFAULT}") for name in lacking
        ],
    }


def _refused(feature: str, options: Iterable[Refusal]) -> list[Cell]:
    models = (_cell(name, feature) for name in MODELS.get(feature, ()))
    return [*_cells(options, feature), *models, *_cells(VARIABLES[feature], feature)]


def _cells(refusals: Iterable[Refusal], feature: str, more: str = "") -> Iterator[Cell]:
    """One for each, of some for each value."""
    for refusal in refusals:
        served = _DRAFTS if refusal.option == "--speculative-algorithm" and not refusal.versions else ()
        for name in _values(refusal.option, more):
            if name not in served:
                yield _cell(name + more, feature, versions=refusal.versions)


def _values(option: str, more: str) -> list[str]:
    """The option with each value that was tried; itself, if none was."""
    tried = {name for files in (TRIALS, EARLIER) for lines in trials(files).values() for name in lines}
    names = {name.removesuffix(more) for name in tried if name.endswith(more)}
    found = sorted(name for name in names if re.fullmatch(rf"{option}( [a-zA-Z]\w+)?", name))
    return found if option in VALUES and found else [option]


def _cell(option: str, feature: str, *, served: bool = False, versions: str = "") -> Cell:
    if whose := next((other for start, other in BELONGS.items() if option.startswith(start)), ""):
        return Cell(option, {"": f"see `{whose}`"}, True, "")
    proof = PROOFS.get((feature, option)) or PROOFS.get(("", option), "")
    found = {} if versions else _outcomes(trials(TRIALS), option, feature)
    if found:
        return Cell(option, found, served, proof)
    old = _outcomes(trials(EARLIER), option, feature)
    said = {f"{support.OTHER}{', ' * bool(where)}{where}": one for where, one in old.items()}
    return Cell(option, said, served, proof)


def _outcomes(tried: Tried, option: str, feature: str) -> dict[str, str]:
    """What came of it on a GPU, and without one where it was tried there alone, or something else came of it."""
    gpu, cpu = (_outcome(tried[on_gpu], option, feature) for on_gpu in (True, False))
    found = {"": gpu} if gpu else {}
    tells = not cpu.startswith("SGLang alone") or "it is ready" in cpu  # no more of what is not here
    if cpu and (not gpu or (_kind(cpu) != _kind(gpu) and tells)):
        found["without a GPU"] = cpu
    return found


def _is_exact(said: str) -> bool:
    return said.startswith("exact")


def _kind(said: str) -> str:
    """What an outcome begins with, whatever the numbers are."""
    return "it is ready" if "it is ready" in said else re.split(r"[:;\d]", said, maxsplit=1)[0]


def _table(cells: Iterable[Cell]) -> str:
    return table(("option", "when it was not refused"), *((_shown(one.option), one.text) for one in cells))


def _shown(option: str) -> str:
    name = option.removesuffix(_BESIDE)
    return f"`{name}`" if name.startswith(("--", "SGLANG")) else name


def _of_earlier() -> str:
    """What was tried with 0.5.17."""
    tried = trials(EARLIER)
    names = sorted({*tried[True], *tried[False]})
    rows_of = []
    for option in names:
        cells = [_joined(_outcomes(tried, option, feature)) for feature in ("rows", "inject", "tilespec")]
        others = ("" if "SGLang alone" in cell else cell for cell in cells[1:])
        name = option.removesuffix(_BESIDE)
        rows_of.append((_shown(option) + option[len(name) :], cells[0], *others))
    files = ", ".join(f"[{number}](../../{file})" for number, file in enumerate(EARLIER, 1))
    head = ("option", "embeddings, fingerprints", "injection", "TileSpec")
    return f"## SGLang 0.5.17\n\nThe last file is of a GPU: {files}.\n\n{table(head, *rows_of)}"


def _joined(outcomes: Mapping[str, str]) -> str:
    return "; ".join(f"{where}: {said}" if where else said for where, said in outcomes.items())


@cache
def trials(files: tuple[str, ...]) -> Tried:
    """What was tried, by the names that options have there."""
    found: dict[bool, dict[str, dict[str, str]]] = {True: {}, False: {}}
    for file in files:
        on_gpu = False
        for line in map(json.loads, (ROOT / file).read_text().splitlines()):
            if option := line.get("option"):
                name = RENAMED.get(option, option)
                before = found[on_gpu].get(name, {})
                own = {key: said for key, said in line.items() if "needs SGLang" not in said}  # which is no trial
                found[on_gpu][name] = before | own if before.get("model") == line["model"] else own
            else:
                on_gpu = line.get("gpu") not in (None, "none")
    return found


def _outcome(tried: Mapping[str, Mapping[str, str]], option: str, feature: str) -> str:
    """What came of an option with a feature; "" if it was not tried."""
    option = ALIASES.get(option, option)
    base = option.removesuffix(" above 1")
    names = [name for name in (option, base, *_further(tried, base)) if name in tried]
    for name in sorted(dict.fromkeys(names), key=lambda name: feature not in tried[name]):
        line = tried[name]
        drafting = line.get("stock with drafts") if feature == "tilespec" else None
        stock = drafting or line.get("stock")
        if said := line.get(feature) or (stock and stock != "serves" and f"SGLang alone {stock}"):
            said = re.sub("not ready in time; .*", "not ready in time", said)
            said = re.sub(r"tessera: timing graphs: .*?\]", "", said)  # a progress bar
            return textwrap.shorten(said.replace("`", ""), _LONGEST, placeholder=" …")
    return ""


def _further(tried: Iterable[str], base: str) -> list[str]:
    """The same option, tried in other ways: beside drafts, or with another model."""
    return [name for name in tried if re.fullmatch(rf"{base} (drafts|windows)", name)]
