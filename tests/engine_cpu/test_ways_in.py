"""A server that is not started by ``python -m sglang.launch_server`` is whole, or does not start.

Libraries make the arguments before SGLang loads plugins, so these are older than our hooks, and start the server
with them elsewhere. Our options come from TESSERA_ARGS, for these libraries pass on only the options that SGLang has.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.claims import claim_of, generate_with_fingerprints, post, verdicts
from tessera_testing.free_port import free_port
from tessera_testing.marks import is_installed, only_in_full
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.refusal import expect_refusal
from tessera_testing.tiny import TINY
from tessera_testing.waiting import wait_until

SCRIPT = str(Path(__file__).parents[1] / "support" / "as_libraries_do.py")
OURS = {"TESSERA_ARGS": "--toploc-verification --enable-injection"}
WAYS = {
    "serve": ("-c", "from sglang.cli.main import main; main()", "serve"),
    "spawned": (SCRIPT, "spawned"),
    "own-app": (SCRIPT, "own-app"),
}
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module", params=["own-app", *only_in_full("serve", "spawned")])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """As libraries start it, and as SGLang advises."""
    with Server(TINY, env=OURS, launched_by=WAYS[request.param]) as server:
        yield server


def test_all_of_it_is_there(server: Server, hf: HuggingFace) -> None:
    """What the scheduler computes, what the main process answers, and what it refuses."""
    meta = generate_with_fingerprints(server, PROMPT, tokens=3, return_embedding={"over": "prompt", "pooling": "last"})
    last = hf.states(PROMPT)[-1]
    assert relative_error(meta["embedding"], last) <= 1e-5
    encoded = post(server, "/v1/embeddings", {"input": PROMPT, "model": "any", "pooling": "last"}).json()
    assert relative_error(encoded["data"][0]["embedding"], last) <= 1e-5
    assert verdicts(server, claim_of(meta)) == ["pass"]
    wrong = post(server, "/generate", {"input_ids": PROMPT, "return_embedding": {"pooling": "median"}})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "return_embedding.pooling")
    info = httpx.get(server.url + "/server_info", timeout=120).json()["tessera"]
    assert info["on"] == ["rows", "inject", "fingerprints"]


@pytest.mark.full
def test_schedulers_without_our_hooks() -> None:
    """The server would answer without what was asked for: it does not start."""
    log = expect_refusal(TINY, env=OURS, launched_by=(SCRIPT, "own-scheduler"))
    (line,) = (line for line in log.splitlines() if line.startswith("tessera: refusing to start: "))
    assert "sglang.srt.managers.scheduler.configure_scheduler_process, " in line
    assert line.endswith("; code that starts schedulers itself must call load_plugins() in them")


@pytest.mark.full
@pytest.mark.skipif(is_installed("<0.5.23"), reason="this SGLang has no such option")
def test_a_start_that_waits_to_be_activated() -> None:
    """``--gated-launch-port``: memory is taken, and weights are loaded, when somebody says so."""
    port = free_port()

    def activated() -> bool:
        with suppress(httpx.TransportError):
            return httpx.post(f"http://127.0.0.1:{port}/gate/activate", timeout=60).status_code == 200
        return False

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait_until, activated, 200)
        with Server(TINY, "--gated-launch-port", str(port), env=OURS) as server:
            waiting.result()
            meta = generate_with_fingerprints(server, PROMPT, tokens=3, return_embedding=True)
            assert verdicts(server, claim_of(meta)) == ["pass"]
