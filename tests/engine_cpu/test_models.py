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

import pytest
import torch

from tessera.capabilities.fingerprints.answer import FINGERPRINTS
from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing.architectures import ARCHITECTURES, make
from tessera_testing.canary import canaries, fly, judge
from tessera_testing.claims import verdicts
from tessera_testing.drafts import retracting
from tessera_testing.endpoints import flush_cache
from tessera_testing.injected import ask, override, prompt_of, replaced, rows_of, vectors_of
from tessera_testing.librarys import build_proofs_base64
from tessera_testing.pool import MakeServer, ServerPool
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.refusal import Refusal

OPTIONS = ("--toploc-verification", "--chunked-prefill-size", "32", "--max-total-tokens", "8192")
INJECTION = "--enable-injection"
FLOAT32_ERROR = 1e-5
IN_EVERY_RUN = ("MiniCPM", "DeepSeek-V3", "Mellum")
FEW_SLOTS = ("--max-total-tokens", "4096", "--swa-full-tokens-ratio", "0.125")


def _cells() -> Iterator[Any]:
    for name in ARCHITECTURES:
        yield pytest.param(name, id=name, marks=() if name in IN_EVERY_RUN else pytest.mark.models)


class Model:
    """A running model.

    Attributes:
        worst: the largest relative error of a row, by what was tried.
    """

    def __init__(self, name: str, server: Server, hf: HuggingFace) -> None:
        self.name, self.server, self.hf = name, server, hf
        self.architecture = ARCHITECTURES[name]
        self.worst: dict[str, float] = {}

    def edit(self, places: Sequence[int] = (), vectors: Any = ()) -> Callable[[torch.Tensor], torch.Tensor]:
        """What the reference makes of its embeddings."""

        def edited(embeds: torch.Tensor) -> torch.Tensor:
            own: torch.Tensor = replaced(list(places), vectors * self.architecture.given)(embeds) if places else embeds
            return own * self.architecture.scale

        return edited

    def check(self, what: str, prompt: list[int], answer: Any, places: Sequence[int] = (), vectors: Any = ()) -> None:
        """Every row is the reference's."""
        expected = self.hf.edited([*prompt, *answer["output_ids"][:-1]], self.edit(places, vectors))
        found = rows_of(answer)
        assert found.shape == expected.shape
        error = relative_error(found, expected)
        self.worst[what] = max(error, self.worst.get(what, 0.0))
        assert error <= self.architecture.error, f"{what}: rows are off by {error:.1e}"


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
    options = (*OPTIONS, INJECTION) if ARCHITECTURES[name].takes_vectors else OPTIONS
    with make_server(served, *options) as server:
        yield Model(name, server, HuggingFace(reference))


def test_rows_vectors_and_fingerprints(model: Model, table: dict[str, Any]) -> None:
    """Rows are the reference's, however they were computed; fingerprints are the library's and tell prompts apart."""
    prompt, places, vectors = prompt_of(60, seed=50), [20, 21, 40], vectors_of(3, 1)
    if model.architecture.takes_vectors:  # what it computes at plain ids is cached for all
        model.check("injection", prompt, ask(model.server, prompt, override(places, vectors)), places, vectors)
    else:
        model.check("cold", prompt[:20], ask(model.server, prompt[:20], max_new_tokens=1))
    for what, cached in (("chunked", 20), ("cached", 59)):
        answer = ask(model.server, prompt, max_new_tokens=8)
        kept = {cached, 0} if model.architecture.windows_apart and what == "chunked" else {cached}
        assert answer["meta_info"]["cached_tokens"] in kept
        model.check(what, prompt, answer)
    several = [prompt_of(length, seed=length) for length in (5, 17, 33, 90)]
    with ThreadPoolExecutor(4) as threads:
        for own, other in zip(several, threads.map(lambda ids: ask(model.server, ids), several), strict=True):
            model.check("batched", own, other)
    for other in ask(model.server, several[0], sampling_params={"n": 3, "max_new_tokens": 4, "temperature": 0}):
        model.check("n = 3", several[0], other)
    found = answer["meta_info"][FINGERPRINTS]
    expected = torch.from_numpy(model.hf.edited([*prompt, *answer["output_ids"][:-1]], model.edit())).bfloat16()
    claim = {"input_ids": prompt, "output_ids": answer["output_ids"], "fingerprints": found}
    theirs = {**claim, "fingerprints": build_proofs_base64([expected[:60], *expected[60:]], 32, 128)}
    assert verdicts(model.server, claim, theirs) == ["pass", "pass"]
    assert verdicts(model.server, {**claim, "input_ids": several[3][:60]}) == ["fail"]
    other = {**theirs, "fingerprints": build_proofs_base64([expected[:60] / 4, *expected[60:] / 4], 32, 128)}
    assert verdicts(model.server, other) == ["fail"]
    tried = {"sglang": version("sglang"), "date": datetime.now(UTC).date().isoformat()}
    table[model.name] = {"errors": model.worst, "remark": model.architecture.remark, **tried}


def test_a_model_that_makes_other_embeddings_of_ids_is_refused(refusal: Refusal, tmp_path: Path) -> None:
    """By its name, before it serves: its rows, and the prefixes that it caches, would be another model's."""
    log = refusal(make(tmp_path, "Granite 4")[0], *OPTIONS, INJECTION)
    assert "refusing to start: --enable-injection does not support GraniteMoeHybridForCausalLM: rows of the same" in log


@pytest.mark.full
def test_windows_that_leave_their_own_pool(server_pool: ServerPool, tmp_path: Path) -> None:
    """It holds an eighth of the tokens: slots leave it, prefixes are shared, and requests are retracted."""
    served, reference = make(tmp_path, "Mellum")
    server = server_pool.get("--enable-return-hidden-states", INJECTION, *FEW_SLOTS, model=served, env=retracting(5))
    flock = canaries(60, 1024, seed=4, injecting=0.3)
    found = judge(flock, fly(server.url, flock, at_once=6), HuggingFace(reference))
    assert {verdict.problem for verdict in found} == {""}
    assert max(verdict.error for verdict in found) <= FLOAT32_ERROR
    assert sum(verdict.cached for verdict in found) > 200
    flush_cache(server)  # fails where a slot was not given back
