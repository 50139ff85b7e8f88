"""SGLang calls our hooks: the first answers of a server show it, and its log says so."""

from __future__ import annotations

import re

import httpx
import pytest

from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing.drafts import TREE, chain, drafting
from tessera_testing.generate import generate
from tessera_testing.marks import needs
from tessera_testing.pool import ServerPool
from tessera_testing.starts import RANKS_ON_CPUS, STAGES_ON_CPUS, TWO_RANKS

HIDDEN, INJECTION = "--enable-return-hidden-states", "--enable-injection"
LINE = r"tessera: self-check passed: SGLang comes to all (\d+) seams that every request needs"
# What is on, as `tessera.config.FEATURES` names it: nothing that the options do not ask for.
DRAFTING = {"speculative_stops", *(() if gpu_present() else ("cpu_speculation",))}
SERVERS = [
    pytest.param((INJECTION, "--disable-overlap-schedule"), {"inject"}, marks=pytest.mark.full),
    ((HIDDEN, INJECTION, *TWO_RANKS), {"rows", "inject"}),
    pytest.param((HIDDEN, INJECTION, "--skip-tokenizer-init"), {"rows", "inject"}, marks=pytest.mark.full),
    pytest.param((HIDDEN, *drafting("EAGLE", TREE)), {"rows", "speculative_rows", *DRAFTING}, marks=pytest.mark.full),
]
SIZED = [
    (("--tile-spec", *drafting("STANDALONE", chain(3))), {"tilespec", *DRAFTING}),
    (
        (HIDDEN, INJECTION, "--tile-spec", *drafting("EAGLE", TREE), "--dp-size", "2"),
        {"rows", "inject", "speculative_rows", "tilespec", *DRAFTING},
    ),
]
WHERE_SIZED = [
    pytest.param(options, on, marks=[needs("tilespec"), *([pytest.mark.full] if "--dp-size" in options else [])])
    for options, on in SIZED
]


@pytest.mark.parametrize(("options", "on"), [*SERVERS, *WHERE_SIZED])
def test_all_that_must_be_called_are(server_pool: ServerPool, options: tuple[str, ...], on: set[str]) -> None:
    """After two tokens; one more request changes nothing."""
    env = RANKS_ON_CPUS if "--tp-size" in options else STAGES_ON_CPUS if "--dp-size" in options else None
    check_calls(server_pool.get(*options, env=env), on)


def test_all_that_rows_need_are_called(forked: Server) -> None:
    """The same of the plain server."""
    check_calls(forked, {"rows"})


def check_calls(server: Server, on: set[str]) -> None:
    """Its log, and ``/server_info``, say that each hook was called, of these features and no others."""
    for _ in range(2):
        generate(server, [1, 2, 3, 4], 2)
    (seams,) = re.findall(LINE, server.log)
    ours = httpx.get(f"{server.url}/server_info", timeout=60).json()["tessera"]
    assert sorted(ours["on"]) == sorted(on)
    found = ours["calls"]
    assert found["complete"]
    assert len(found["counts"]) == int(seams)
    assert all(found["counts"].values())
