"""Sessions that keep their KV slots between turns (``--enable-streaming-session``): rows of the whole conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing.architectures import make
from tessera_testing.claims import claim_of, post, verdicts
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.starts import FLOAT32_STATES, STATES_ON_A_CPU
from tessera_testing.waiting import wait_until

prompt_of = partial(fresh_prompt, "streaming sessions")

FLOAT32_ERROR = 1e-5
PLAIN = {"normalize": False, "dimensions": None, "pooling": "mean", "over": "all"}
REQUESTED: dict[str, Any] = {
    "return_embedding": PLAIN,
    "return_toploc_fingerprints": True,
    "return_input_ids": True,
    "return_output_ids": True,
}


@contextmanager
def opened(server: Server) -> Iterator[str]:
    """A session of a server."""
    body = {"capacity_of_str_len": 1000, "streaming": True}
    found: str = post(server, "/open_session", body).raise_for_status().json()
    yield found
    post(server, "/close_session", {"session_id": found}).raise_for_status()


@pytest.fixture
def session(strained: Server) -> Iterator[str]:
    """An open one."""
    with opened(strained) as found:
        yield found


def turn(server: Server, session: str, prompt: list[int], tokens: int = 6, **fields: Any) -> Any:
    """The answer to what a turn adds."""
    return generate(server, prompt, tokens, session_params={"id": session}, **REQUESTED, **fields)


def check(hf: HuggingFace, conversation: list[int], answer: Any) -> None:
    """The prompt is the whole conversation, and so are the rows."""
    meta = answer["meta_info"]
    assert meta["input_ids"] == conversation
    expected = hf.pooled(conversation, answer["output_ids"], "mean", "all")
    assert relative_error(meta["embedding"], expected) <= FLOAT32_ERROR


def test_turns(strained: Server, session: str, hf: HuggingFace) -> None:
    """Each turn reads rows of those before it, though others ran meanwhile; each is verified."""
    converse(strained, session, hf)


@pytest.mark.full
@pytest.mark.skipif(gpu_present(), reason="rows are compared in float32")
def test_turns_beside_state(server_pool: ServerPool, tmp_path: Path) -> None:
    """The same where a request has linear-attention state, too."""
    served, reference = make(tmp_path, "Qwen3-Next")
    options = ("--toploc-verification", "--enable-streaming-session", "--max-mamba-cache-size", "64", *STATES_ON_A_CPU)
    server = server_pool.get(*options, model=served, env=FLOAT32_STATES)
    with opened(server) as session:
        converse(server, session, HuggingFace(reference))


def converse(strained: Server, session: str, hf: HuggingFace) -> None:
    """Four turns, requests of others between them, and their claims."""
    conversation: list[int] = []
    metas = []
    for number, length in enumerate((40, 9, 1, 33)):
        added = prompt_of(length, number)
        answer = turn(strained, session, added)
        check(hf, conversation + added, answer)
        cached = answer["meta_info"]["cached_tokens"]
        assert number == 0 or cached >= len(conversation) - 1
        conversation += added + answer["output_ids"]
        metas.append(answer["meta_info"])
        generate(strained, [prompt_of(40, 100 + 10 * number + other) for other in range(3)], 3)
    flush_cache(strained)
    claims = [claim_of(meta) for meta in metas]
    wrong = {**claims[1], "fingerprints": claims[0]["fingerprints"]}
    assert verdicts(strained, *claims, wrong) == ["pass"] * 4 + ["fail"]


def test_after_a_turn_that_was_given_up(strained: Server, session: str, hf: HuggingFace) -> None:
    """Its tokens are none of the conversation's."""
    first = turn(strained, session, prompt_of(30, 20))
    conversation = prompt_of(30, 20) + first["output_ids"]
    sampling = {"max_new_tokens": 300, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt_of(12, 21), "sampling_params": sampling, "stream": True, **REQUESTED}
    with httpx.stream("POST", f"{strained.url}/generate", json={**body, "session_params": {"id": session}}) as response:
        next(response.iter_lines())
    post(strained, "/abort_request", {"rid": "", "abort_all": True}).raise_for_status()
    added, answers = prompt_of(5, 22), []

    def answered() -> bool:
        try:
            answers.append(turn(strained, session, added))
        except RuntimeError as error:  # the other turn ends with the step that it is in
            if "already has an active request" not in str(error):
                raise
        return bool(answers)

    wait_until(answered)
    check(hf, conversation + added, answers[0])
