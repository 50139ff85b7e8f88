"""Architectures of models: random weights, real servers, and transformers' own code as the reference.

Three of them in every run; all of them, with the table of the docs, by ``make test-models``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from provenance import provenance
from tessera.capabilities.fingerprints.answer import FINGERPRINTS
from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing import adapters
from tessera_testing.architectures import (
    ARCHITECTURES,
    OLD,
    WITH_ADAPTERS,
    configured,
    make,
    on_a_gpu,
    with_adapter,
)
from tessera_testing.canary import canaries, fly_exactly
from tessera_testing.claims import verdicts
from tessera_testing.drafts import retracting
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import generate
from tessera_testing.injected import ask, override, prompt_of, replaced, rows_of, vectors_of
from tessera_testing.librarys import proofs
from tessera_testing.own_logprobs import OwnLogprobs
from tessera_testing.pool import MakeServer, ServerPool
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.starts import FLOAT32_STATES, SMALL, STATES_ON_A_CPU

CHUNK = 64 if gpu_present() else 32
"""On a GPU, SGLang keeps states of linear attention at multiples of 64 tokens."""
LENGTH = CHUNK + 28
"""Of the prompt: more than a chunk behind the 20 tokens that an earlier request left in the cache."""
STOCK = ("--chunked-prefill-size", str(CHUNK), "--max-total-tokens", "8192")
OPTIONS = ("--toploc-verification", *STOCK)
ON_A_GPU = ("--dtype", "bfloat16", "--attention-backend", "triton", *SMALL)
BFLOAT16_ERROR = 2
"""On a GPU: how many times Hugging Face's own error in bfloat16 that of an answer's rows may be.

Not 1: both round the same sums in another order, and either may be further off. Transformers' two ways of computing
attention would not pass it (benchmarks/bfloat16_errors.py). The table has both errors.
"""
STATES = ("--max-mamba-cache-size", "128", "--max-running-requests", "16")
CACHED_ENCODES = 200
"""More of them than states."""
BFLOAT16_ROUNDING = 1e-2 if gpu_present() else 1e-5
INJECTION = "--enable-injection"
IN_EVERY_RUN = ("DeepSeek-V3", "Mellum", "Qwen3-Next")
FEW_SLOTS = ("--max-total-tokens", "4096", "--swa-full-tokens-ratio", "0.125")


def _cells() -> Iterator[Any]:
    for name in ARCHITECTURES:
        yield pytest.param(name, id=name, marks=() if name in IN_EVERY_RUN else pytest.mark.models)


class Model:
    """A running model.

    Attributes:
        exact: the reference that computes as SGLang does; `hf`, but for `computed_as`.
        worst: the largest relative error of rows, by what was tried.
        rounding: on a GPU, Hugging Face's own in bfloat16, by the same.
        own: SGLang's own log-probabilities, where rows are judged by them.
        agrees: whether rows must be those of `exact`.
    """

    def __init__(self, name: str, served: Path, server: Server, hf: HuggingFace, exact: HuggingFace) -> None:
        self.name, self.served, self.server, self.hf, self.exact = name, served, server, hf, exact
        self.architecture = ARCHITECTURES[name]
        self.worst: dict[str, float] = {}
        self.rounded = HuggingFace(exact.model, bfloat16=True) if gpu_present() else None
        self.rounding: dict[str, float] = {}
        dtype = torch.bfloat16 if gpu_present() else torch.float32
        judged = self.architecture.judged_by_logprobs or (gpu_present() and self.architecture.logprobs_on_a_gpu)
        self.own = OwnLogprobs(hf.model, dtype) if judged else None
        self.agrees = not judged or exact is not hf

    def remark(self) -> str:
        """What the table says beside its error."""
        own = self.own.remark() if self.own is not None else ""
        return "; ".join(filter(None, [self.architecture.remark, own]))

    def edit(self, places: Sequence[int] = (), vectors: Any = ()) -> Callable[[torch.Tensor], torch.Tensor]:
        """What the reference makes of its embeddings."""

        def edited(embeds: torch.Tensor) -> torch.Tensor:
            own: torch.Tensor = replaced(list(places), vectors * self.architecture.given)(embeds) if places else embeds
            return own * self.architecture.scale

        return edited

    def ask(self, prompt: Any, overrides: Any = None, computed_from: int = 0, **fields: Any) -> Any:
        """A greedy answer with all rows, of which those before ``computed_from`` may be cached."""
        own = OwnLogprobs.fields(computed_from) if self.own is not None else {}
        return ask(self.server, prompt, overrides, **own, **fields)

    def check(self, what: str, prompt: list[int], answer: Any, places: Sequence[int] = (), vectors: Any = ()) -> None:
        """Every row is the reference's, or what SGLang itself goes on with."""
        ids, edit = [*prompt, *answer["output_ids"][:-1]], self.edit(places, vectors)
        found, expected = rows_of(answer), self.exact.edited(ids, edit)
        assert found.shape == expected.shape
        error, allowed = relative_error(found, expected), self.architecture.error
        self.worst[what] = max(error, self.worst.get(what, 0.0))
        if self.rounded is not None:
            rounding = relative_error(self.rounded.edited(ids, edit), expected)
            self.rounding[what] = max(rounding, self.rounding.get(what, 0.0))
            allowed = max(allowed, BFLOAT16_ERROR * rounding)
        if self.own is not None:
            self.own.check(what, ids, answer, min(places, default=len(ids)))
        if not self.agrees:
            return
        rows = [place for place, row in enumerate(found) if relative_error(row, expected[place]) > allowed]
        assert error <= allowed, f"{what}: rows are off by {error:.1e}, not {allowed:.1e}; more than that: {rows}"


@pytest.fixture(scope="module")
def table(pytestconfig: pytest.Config) -> Iterator[dict[str, Any]]:
    """What was found, by architecture; written to the file of ``--models-table``, which keeps what was not tried."""
    found: dict[str, Any] = {}
    yield found
    path: Path | None = pytestconfig.getoption("--models-table")
    if path is not None:
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | found, indent=1) + "\n")


@pytest.fixture(params=_cells())
def model(make_server: MakeServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    """One server for each."""
    name = request.param
    if ARCHITECTURES[name].absent and not gpu_present():
        pytest.skip(ARCHITECTURES[name].absent)
    served, reference = make(tmp_path, name)
    options, env = options_of(name)
    hf = HuggingFace(reference)
    computed_as = ARCHITECTURES[name].computed_as
    exact = HuggingFace(configured(reference, tmp_path / "exact", computed_as)) if computed_as else hf
    with make_server(served, *options, env=env) as server:
        yield Model(name, served, server, hf, exact)


def options_of(name: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Options and environment of the server of one of `ARCHITECTURES`."""
    architecture = ARCHITECTURES[name]
    options = (
        *((*ON_A_GPU, *architecture.options) if gpu_present() else ()),
        *OPTIONS,
        INJECTION,
    )
    if not architecture.keeps_state:
        return options, {}
    kept = () if gpu_present() and not OLD else STATES_ON_A_CPU
    return (*options, *STATES, *kept), {} if gpu_present() else FLOAT32_STATES


def when() -> dict[str, Any]:
    """Where, when and with what a line of the table was found."""
    run = provenance()
    device = "CPU, float32" if run["gpu"] == "none" else f"{run['gpu']}, bfloat16"
    return {"device": device, **{key: run[key] for key in ("commit", "date", "versions")}}


@pytest.mark.timeout(900)  # it may start the stock server, for minutes on a GPU
def test_rows_vectors_and_fingerprints(model: Model, make_server: MakeServer, table: dict[str, Any]) -> None:
    """Rows are the reference's, however they were computed; fingerprints are the library's and tell prompts apart."""
    prompt, places, vectors = prompt_of(LENGTH, seed=50), [20, 21, 40], vectors_of(3, 1)
    # What it computes at plain ids is cached for all.
    model.check("injection", prompt, model.ask(prompt, override(places, vectors)), places, vectors)
    for what, cached in (("chunked", 20), ("cached", LENGTH - 1)):
        allowed = {cached, 0} if model.architecture.windows_apart and what == "chunked" else {cached}
        answer = model.ask(prompt, computed_from=min(allowed), max_new_tokens=8)
        assert model.architecture.keeps_state or answer["meta_info"]["cached_tokens"] in allowed
        model.check(what, prompt, answer)
    several = [prompt_of(length, seed=length) for length in (5, 17, 33, 90)]
    with ThreadPoolExecutor(4) as threads:
        for own, other in zip(several, threads.map(model.ask, several), strict=True):
            model.check("batched", own, other)
    sampling = {"n": 3, "max_new_tokens": 4, "temperature": 0}
    for other in model.ask(several[0], computed_from=4, sampling_params=sampling):
        model.check("n = 3", several[0], other)
    if model.architecture.keeps_state:
        check_kept_states(model)
    claim = {
        "input_ids": prompt,
        "output_ids": answer["output_ids"],
        "fingerprints": answer["meta_info"][FINGERPRINTS],
    }
    other_prompt = prompt_of(LENGTH, seed=51)
    assert verdicts(model.server, claim, {**claim, "input_ids": other_prompt}) == ["pass", "fail"]
    if model.own is not None:
        check_stock(model, model.own, make_server, other_prompt)
    found = {"errors": model.worst, "rounding": model.rounding, "remark": model.remark()}
    table[on_a_gpu(model.name) if gpu_present() else model.name] = {**found, **when()}
    ids = [*prompt, *answer["output_ids"][:-1]]
    rows = model.exact.edited(ids, model.edit()) if model.agrees else rows_of(answer)
    expected = torch.from_numpy(rows).bfloat16()
    theirs = {**claim, "fingerprints": proofs(expected, LENGTH)}
    other = {**theirs, "fingerprints": proofs(expected / 4, LENGTH)}
    assert verdicts(model.server, theirs, other) == ["pass", "fail"]


def check_stock(model: Model, own: OwnLogprobs, make_server: MakeServer, prompt: list[int]) -> None:
    """A deviation from transformers is SGLang's: its stock server reports the same log-probabilities."""
    flush_cache(model.server)
    ours = model.ask(prompt, max_new_tokens=1)
    options = (*((*ON_A_GPU, *model.architecture.options) if gpu_present() else ()), *STOCK)
    with make_server(model.served, *options, env={"TESSERA_DISABLE": "1"}) as server:
        stock = generate(server, prompt, 1, **OwnLogprobs.fields(0))
    own.check_stock(prompt, ours, stock, model.hf.edited(prompt, model.edit()))


def check_kept_states(model: Model) -> None:
    """Prefixes are matched where a state is kept, and what is computed again is the same; no state is lost."""
    prompt, cached = prompt_of(2 * CHUNK, seed=2), 0
    answer = ask(model.server, prompt, max_new_tokens=12)
    model.check("before a turn", prompt, answer)
    turns = {"turn": [*prompt, *answer["output_ids"], *prompt_of(20, seed=3)], "branch": [*prompt[:-4], 5, 6, 7]}
    for what, turn in turns.items():
        answer = ask(model.server, turn)
        cached += answer["meta_info"]["cached_tokens"]
        model.check(what, turn, answer)
    assert cached >= CHUNK
    rows: dict[str, Any] = {"return_hidden_states": True, "hidden_states_format": "base64"}
    for _ in range(CACHED_ENCODES):
        encoded = generate(model.server, prompt, 0, **rows)
    assert gpu_present() or encoded["meta_info"]["cached_tokens"] == len(prompt)
    model.check("cached encode", prompt, encoded)
    body = {"input": [prompt, prompt], "model": "tiny"}
    items = httpx.post(f"{model.server.url}/v1/embeddings", json=body, timeout=120).raise_for_status().json()["data"]
    for item in items:
        assert relative_error(item["embedding"], rows_of(encoded).mean(0)) <= BFLOAT16_ROUNDING
    flush_cache(model.server)
    prompt = prompt_of(40, seed=4)  # an idle server ends where a slot is missing
    model.check("after a flush", prompt, ask(model.server, prompt))


@pytest.mark.models
@pytest.mark.skipif(gpu_present(), reason="tests/gpu/test_injection_lora.py has both")
@pytest.mark.parametrize("name", WITH_ADAPTERS)
def test_adapters(make_server: MakeServer, tmp_path: Path, table: dict[str, Any], name: str) -> None:
    """Rows, cold, cached and in one batch, injection and fingerprints are those of the adapter that is asked for."""
    served, _ = make(tmp_path, name)
    adapter = tmp_path / "own"
    adapter.mkdir()
    references: dict[str | None, HuggingFace] = {
        None: HuggingFace(served),
        "own": adapters.merged(adapters.make(adapter, 0, served), tmp_path / "merged", served),
    }
    lora = ("--enable-lora", "--lora-backend", "torch_native", "--lora-paths", f"own={adapter}")
    prompt, places, vectors = prompt_of(LENGTH, seed=50), [20, 21, 40], vectors_of(3, 1)
    worst: dict[str, float] = {}

    def check(what: str, path: str | None, **fields: Any) -> Any:
        answer = ask(server, prompt, lora_path=path, **fields)
        edit = replaced(places, vectors) if fields else (lambda embeds: embeds)
        expected = references[path].edited([*prompt, *answer["output_ids"][:-1]], edit)
        worst[what] = max(relative_error(rows_of(answer), expected), worst.get(what, 0.0))
        return answer

    env = {"TESSERA_TEST_FAULT": "unpinned pooling"}
    with make_server(served, *OPTIONS, INJECTION, *lora, env=env) as server:
        for path in references:
            check("injection", path, overrides=override(places, vectors))
        for what in ("chunked", "cached"):
            answers = {path: check(what, path) for path in references}
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda path: check("batched", path), [*references] * 2))
        assert max(worst.values()) <= ARCHITECTURES[name].error
        claims = [
            {
                "input_ids": prompt,
                "output_ids": answers[of]["output_ids"],
                "fingerprints": answers[of]["meta_info"][FINGERPRINTS],
                "lora_path": path,
            }
            for of in references
            for path in references
        ]
        assert verdicts(server, *claims) == ["pass", "fail", "fail", "pass"]
    table[with_adapter(name)] = {"errors": worst, "remark": "", **when()}


@pytest.mark.full
def test_windows_that_leave_their_own_pool(server_pool: ServerPool, tmp_path: Path) -> None:
    """It holds an eighth of the tokens: slots leave it, prefixes are shared, and requests are retracted."""
    fly_canaries(server_pool, "Mellum", tmp_path, (INJECTION, *FEW_SLOTS), {}, injecting=0.3)


@pytest.mark.full
@pytest.mark.skipif(gpu_present(), reason="rows are compared in float32")
def test_states_of_many_requests(server_pool: ServerPool, tmp_path: Path) -> None:
    """There are 40 for requests and prefixes together: kept ones make room, and requests are retracted."""
    few = ("--max-mamba-cache-size", "40", "--max-running-requests", "8", *STATES_ON_A_CPU)
    fly_canaries(server_pool, "Qwen3-Next", tmp_path, few, FLOAT32_STATES)


def fly_canaries(
    server_pool: ServerPool,
    name: str,
    folder: Path,
    options: tuple[str, ...],
    env: dict[str, str],
    injecting: float = 0,
) -> None:
    """Many requests at once, some retracted and some with a cached prefix, get their own rows; no slot is lost."""
    served, reference = make(folder, name)
    hidden = "--enable-return-hidden-states"
    server = server_pool.get(hidden, *options, model=served, env=retracting(5) | env)
    flock = canaries(60, 1024, seed=4, injecting=injecting)
    found = fly_exactly(server.url, flock, HuggingFace(reference), at_once=6)
    assert sum(verdict.cached for verdict in found) > 200
    flush_cache(server)  # fails where a slot was not given back
