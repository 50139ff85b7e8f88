"""Servers that are forked from a process that has imported the engine are those that users start."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tessera.launching.command import environment
from tessera.launching.processes import ProcessFamily
from tessera.launching.server import Server
from tessera_testing.claims import FINGERPRINTS
from tessera_testing.drafts import retracting
from tessera_testing.generate import fresh_prompt
from tessera_testing.pool import MakeServer
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.tiny import TINY

pytestmark = pytest.mark.full
OF_ONE_ANSWER = {"id", "e2e_latency", "response_sent_to_client_ts"}
"""In ``meta_info``: what no two answers have in common."""
OF_ONE_SERVER = {"port", "nccl_port", "random_seed", "startup_time", "internal_states", "launch_command"}
"""In ``/server_info``: what no two servers have in common."""


@pytest.fixture(autouse=True)
def _where_they_are_forked(make_server: MakeServer) -> None:
    if make_server is Server:
        pytest.skip("every server is spawned")


def test_the_same_server_info(server: Server, forked: Server) -> None:
    """What is on, the seams in force, and what SGLang made of its options."""
    infos = [httpx.get(f"{one.url}/server_info", timeout=60).raise_for_status().json() for one in (server, forked)]
    first, second = ({name: value for name, value in one.items() if name not in OF_ONE_SERVER} for one in infos)
    for one in (first, second):
        del one["tessera"]["calls"]  # of what was asked until now
    assert first == second
    assert first["tessera"]["on"] == ["rows"]


def test_they_answer_the_same_bytes(server: Server, forked: Server) -> None:
    """Tokens, rows, embeddings and fingerprints; several in a batch, cold and cached."""
    body = {
        "input_ids": [fresh_prompt("prepared", length, length) for length in (5, 40, 41, 90)],
        "sampling_params": {"max_new_tokens": 40, "ignore_eos": True, "temperature": 0},
        "return_logprob": True,
        "return_embedding": {"over": "all"},
        "return_hidden_states": True,
        "return_toploc_fingerprints": True,
    }
    for _ in range(2):
        both = [
            httpx.post(f"{one.url}/generate", json=body, timeout=120).raise_for_status() for one in (server, forked)
        ]
        first, second = ([without(OF_ONE_ANSWER, one) for one in answer.json()] for answer in both)
        assert first == second
        assert [len(one["meta_info"][FINGERPRINTS]) for one in first] == [3] * 4


def without(names: set[str], answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without these fields of its ``meta_info``."""
    return answer | {"meta_info": {name: value for name, value in answer["meta_info"].items() if name not in names}}


class Process(NamedTuple):
    """What /proc says of one."""

    name: str
    parent: int
    session: int


def engines(server: Server) -> list[Process]:
    """The processes that SGLang has named."""
    found = []
    for pid in ProcessFamily(server.pid).refresh():
        name, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rsplit(") ", 1)
        if name.startswith("sglang::"):
            found.append(Process(name, *(int(rest.split()[place]) for place in (1, 3))))
    return found


def test_their_processes_are_the_same(server: Server, forked: Server) -> None:
    """Children of the launcher, in its session, under SGLang's names."""
    for one in (server, forked):
        names = "sglang::detoken", "sglang::schedul"
        assert sorted(engines(one)) == [Process(name, one.pid, one.pid) for name in names]


def test_nothing_is_left_of_one(make_server: MakeServer) -> None:
    """Also where its launcher is killed, whose exit status is told."""
    with make_server(TINY) as server:
        family = ProcessFamily(server.pid)
        assert len(engines(server)) == 2
        os.kill(server.pid, signal.SIGKILL)
        assert family.wait_gone(15)
        assert server.exit_code == -signal.SIGKILL


def test_what_an_import_depends_on(interpreter: Interpreter) -> None:
    """A server whose environment would have changed what was imported is spawned."""
    assert interpreter.differing(environment(retracting(5) | {"TESSERA_TEST_FAULT": "dice"})) == set()
    assert interpreter.differing(environment({"SGLANG_LOG_FORWARD_ITERS": "1"})) == {"SGLANG_LOG_FORWARD_ITERS"}
