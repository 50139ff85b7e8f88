"""Architectures of models: random weights, real servers, and transformers' own code as the reference.

Three of them in every run; all of them, with the table of the docs, by ``make test-models``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tessera.capabilities.fingerprints.answer import FINGERPRINTS
from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing.architectures import ARCHITECTURES, OLD, make
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
OPTIONS = ("--toploc-verification", "--chunked-prefill-size", str(CHUNK), "--max-total-tokens", "8192")
ON_A_GPU = ("--dtype", "bfloat16", "--attention-backend", "triton", *SMALL)
BFLOAT16_ERROR = 2
"""On a GPU: how many times Hugging Face's own error in bfloat16 a row's may be."""
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
        worst: the largest relative error of rows, by what was tried.
        rounding: on a GPU, Hugging Face's own in bfloat16.
        own: SGLang's own log-probabilities, where rows are judged by them.
    """

    def __init__(self, name: str, server: Server, hf: HuggingFace) -> None:
        self.name, self.server, self.hf = name, server, hf
        self.architecture = ARCHITECTURES[name]
        self.worst: dict[str, float] = {}
        self.rounded = HuggingFace(hf.model, bfloat16=True) if gpu_present() else None
        self.rounding = 0.0
        dtype = torch.bfloat16 if gpu_present() else torch.float32
        self.own = OwnLogprobs(hf.model, dtype) if self.architecture.judged_by_logprobs else None

    def remark(self) -> str:
        """What the table says beside its error."""
        on_a_gpu = f"on a GPU in bfloat16, where Hugging Face's own error is {self.rounding:.0e}"
        own = self.own.remark() if self.own is not None else ""
        return "; ".join(filter(None, [on_a_gpu if self.rounded is not None else "", own, self.architecture.remark]))

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
        expected = self.hf.edited(ids, edit)
        found = rows_of(answer)
        assert found.shape == expected.shape
        error, allowed = relative_error(found, expected), self.architecture.error
        self.worst[what] = max(error, self.worst.get(what, 0.0))
        if self.rounded is not None:
            rounding = relative_error(self.rounded.edited(ids, edit), expected)
            self.rounding, allowed = max(rounding, self.rounding), max(allowed, BFLOAT16_ERROR * rounding)
        if self.own is not None:
            self.own.check(what, ids, answer, expected, min(places, default=len(ids)))
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
    with make_server(served, *options, env=env) as server:
        yield Model(name, server, HuggingFace(reference))


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


def test_rows_vectors_and_fingerprints(model: Model, table: dict[str, Any]) -> None:
    """Rows are the reference's, however they were computed; fingerprints are the library's and tell prompts apart."""
    prompt, places, vectors = prompt_of(60, seed=50), [20, 21, 40], vectors_of(3, 1)
    # What it computes at plain ids is cached for all.
    model.check("injection", prompt, model.ask(prompt, override(places, vectors)), places, vectors)
    for what, cached in (("chunked", 20), ("cached", 59)):
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
    assert verdicts(model.server, claim, {**claim, "input_ids": several[3][:60]}) == ["pass", "fail"]
    tried = {"sglang": version("sglang"), "date": datetime.now(UTC).date().isoformat()}
    table[model.name] = {"errors": model.worst, "remark": model.remark(), **tried}
    ids = [*prompt, *answer["output_ids"][:-1]]
    rows = model.hf.edited(ids, model.edit()) if model.own is None else rows_of(answer)
    expected = torch.from_numpy(rows).bfloat16()
    theirs = {**claim, "fingerprints": proofs(expected, 60)}
    other = {**theirs, "fingerprints": proofs(expected / 4, 60)}
    assert verdicts(model.server, theirs, other) == ["pass", "fail"]


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
