"""Every vector is the right one for its own request, whatever runs beside it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.canary import canaries, fly, judge
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.waiting import wait_until

FLOAT32_ERROR = 1e-5
ROW_BYTES = 256 * 4


@pytest.mark.parametrize(
    ("which", "share"), [("server", 0.0), ("injecting", 0.6), pytest.param("strained", 0.3, marks=pytest.mark.full)]
)
def test_canaries(which: str, share: float, request: pytest.FixtureRequest, hf: HuggingFace) -> None:
    """300 requests, 24 at once: shared prefixes, vectors, every option, streams, and clients that leave half-way."""
    server: Server = request.getfixturevalue(which)
    flock = canaries(300, vocabulary=1000, seed=5, leaving=0.1, injecting=share)
    verdicts = judge(flock, fly(server.url, flock, at_once=24), hf)
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert max(verdict.error for verdict in verdicts) <= FLOAT32_ERROR
    assert sum(verdict.cached > 0 for verdict in verdicts) > len(verdicts) / 3


def test_canaries_beside_aborts(server: Server, hf: HuggingFace) -> None:
    """Twelve long requests are aborted while 120 others run: each has its own vector, over the tokens that it has."""
    rids = [f"long-{i}" for i in range(12)]

    def long_request(rid: str) -> httpx.Response:
        sampling = {"max_new_tokens": 2000, "ignore_eos": True}
        body = {"input_ids": [9] * 30, "rid": rid, "sampling_params": sampling, "return_embedding": {"over": "all"}}
        return httpx.post(f"{server.url}/generate", json=body, timeout=240)

    def abort(rid: str, request: Future[httpx.Response]) -> None:
        def ends() -> bool:
            httpx.post(f"{server.url}/abort_request", json={"rid": rid}, timeout=60).raise_for_status()
            return request.done()

        wait_until(ends, 240)  # it may not have arrived yet

    def abort_them(aborted: list[Future[httpx.Response]]) -> None:
        for rid, request in zip(rids, aborted, strict=True):
            abort(rid, request)

    flock = canaries(120, vocabulary=1000, seed=6)
    with ThreadPoolExecutor(len(rids) + 1) as pool:
        aborted = [pool.submit(long_request, rid) for rid in rids]
        aborting = pool.submit(abort_them, aborted)
        verdicts = judge(flock, fly(server.url, flock, at_once=16), hf)
        aborting.result()
    for request in aborted:
        answer = request.result().json()
        meta = answer["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert (meta["embedding"] is None) == ("rows_unavailable" in meta)  # one that still waited has none
        if meta["embedding"] is not None:
            expected = hf.pooled([9] * 30, answer["output_ids"], "mean", "all")
            assert relative_error(meta["embedding"], expected) <= FLOAT32_ERROR
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert max(verdict.error for verdict in verdicts) <= FLOAT32_ERROR


def test_rows_lie_in_the_hosts_memory(strained: Server) -> None:
    """As ``--rows-on-host`` asks; on a GPU it reads and writes them there."""
    assert "the KV cache's bytes), in the host's memory" in strained.log
    (store,) = httpx.get(f"{strained.url}/server_info", timeout=60).json()["tessera"]["row_stores"]
    assert (store["bytes"], store["host_bytes"]) == (0, (store["slots"] + 1) * ROW_BYTES)  # one is padding
