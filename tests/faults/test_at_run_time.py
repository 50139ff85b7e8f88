"""One request's failure is that request's error; after every fault the next good request is right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.endpoints import flush_cache
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.tiny import TINY
from tessera_testing.weights import with_other_weights

FLOAT32_ERROR = 1e-5
PROMPT = list(range(100, 150))


@pytest.fixture(scope="module")
def hf() -> HuggingFace:
    """The reference of the tiny model."""
    return HuggingFace(TINY)


def embed(server: Server, prompt: list[int], rid: str | None = None, *, stream: bool = False) -> httpx.Response:
    """An encode-only request."""
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}, "return_embedding": True, "stream": stream}
    return httpx.post(f"{server.url}/generate", json=body | ({} if rid is None else {"rid": rid}), timeout=120)


def check_good(failing: Server, hf: HuggingFace) -> None:
    """A good request is answered, and right."""
    answer = embed(failing, PROMPT).raise_for_status().json()
    assert relative_error(answer["meta_info"]["embedding"], hf.pooled(PROMPT, [], "mean", "prompt")) <= FLOAT32_ERROR


@pytest.mark.parametrize(
    ("rid", "code"),
    [("span-fault", "rows_not_collected"), ("start-fault", "row_store_failed"), ("wait-fault", "row_store_failed")],
)
def test_a_failure_of_ours_is_that_requests_error(failing: Server, hf: HuggingFace, rid: str, code: str) -> None:
    """500 with a code; in a stream the same as an abort; the server lives."""
    answer = embed(failing, PROMPT, f"{rid}-1")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == code
    streamed = embed(failing, PROMPT, f"{rid}-2", stream=True)
    assert f'"err_type":"{code}"' in streamed.text
    check_good(failing, hf)


def test_neighbours_of_a_failure_are_served(failing: Server, hf: HuggingFace) -> None:
    """Of twenty requests at once, the one that fails fails alone."""

    async def all_at_once() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=failing.url, timeout=120) as client:
            rids = ["span-fault-3", *(f"good-{i}" for i in range(19))]
            bodies = [
                {
                    "input_ids": PROMPT[i:],
                    "rid": rid,
                    "sampling_params": {"max_new_tokens": 8, "ignore_eos": True},
                    "return_embedding": True,
                }
                for i, rid in enumerate(rids)
            ]
            return await asyncio.gather(*(client.post("/generate", json=body) for body in bodies))

    failed, *good = asyncio.run(all_at_once())
    assert failed.status_code == 500
    for i, answer in enumerate(good, start=1):
        expected = hf.pooled(PROMPT[i:], [], "mean", "prompt")
        assert relative_error(answer.json()["meta_info"]["embedding"], expected) <= FLOAT32_ERROR


def test_encodes_compute_no_logits(failing: Server, hf: HuggingFace) -> None:
    """A batch of encodes alone: none; one that generates or wants log-probabilities: as always."""

    def logits(**fields: Any) -> int:
        before = failing.log.count("logits of ")
        body = {"input_ids": PROMPT[::-1], "return_embedding": True, **fields}
        httpx.post(f"{failing.url}/generate", json=body, timeout=120).raise_for_status()
        return failing.log.count("logits of ") - before

    check_good(failing, hf)
    assert logits(sampling_params={"max_new_tokens": 0}) == 0
    assert logits(sampling_params={"max_new_tokens": 1}) > 0
    assert logits(sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0) > 0
    assert logits(sampling_params={"max_new_tokens": 0}) == 0


def test_disconnect_frees_the_request(failing: Server, hf: HuggingFace) -> None:
    """A client that goes away leaves nothing running: /flush_cache works only on an idle server."""
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True},
        "stream": True,
        "return_embedding": {"over": "all"},
    }
    with httpx.stream("POST", f"{failing.url}/generate", json=body, timeout=120) as response:
        next(response.iter_lines())
    flush_cache(failing)
    check_good(failing, hf)


def test_rows_of_old_weights_are_never_returned(failing: Server, hf: HuggingFace, tmp_path: Path) -> None:
    """Weights are updated and the prefix cache is kept: its rows are computed again."""
    check_good(failing, hf)
    update = {"model_path": str(with_other_weights(tmp_path)), "flush_cache": False}
    httpx.post(f"{failing.url}/update_weights_from_disk", json=update, timeout=120).raise_for_status()
    check_good(failing, HuggingFace(tmp_path))

    back = {"model_path": str(TINY), "flush_cache": True}
    httpx.post(f"{failing.url}/update_weights_from_disk", json=back, timeout=120).raise_for_status()
    check_good(failing, hf)
