"""The worked examples, against the real server."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

import nla_rollout
from tessera.launching.server import Server
from tessera_testing.injected import edit_of, vectors_of
from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(server: Server, script: str, *options: str) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / script), *options]
    environment = {**os.environ, "SGLANG_URL": server.url}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_best_first_search(server: Server) -> None:
    """One problem is solved, by proposals and values from one server."""
    printed = run(server, "best_first_search/search.py", "--problems", "1", "--examples", "200")
    assert "one server for both jobs: sglang 0.5" in printed
    (function,) = re.findall(r"^def .*?^# ", printed, re.MULTILINE | re.DOTALL)
    compile(function, "found", "exec")


def test_minimal_fingerprints(server: Server) -> None:
    """An honest response passes, a tampered one fails."""
    lines = run(server, "minimal_fingerprints.py").splitlines()
    assert lines[1] == "as it was: pass"
    assert lines[2].startswith("another response: fail fingerprint 1: ")
    assert lines[3].startswith("another prompt: fail fingerprint 0: ")


def test_lean_tactics(server: Server) -> None:
    """The state's embedding comes, whatever a model of Python says about Lean."""
    assert run(server, "lean_tactics.py").splitlines()[-1] == "embedding: 256 values"


class Sample:
    """What the example uses of slime's, as a dataset makes it: a text, and no tokens."""

    def __init__(self, prompt: str, **metadata: Any) -> None:
        self.prompt, self.metadata = prompt, metadata
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.response_length = 0

    def append_response_tokens(self, _: Any, *, tokens: list[int], log_probs: list[float], **others: Any) -> None:
        """What was generated, and SGLang's log-probabilities."""
        assert {*others} == {"trainable", "meta_info", "text"}
        self.tokens += tokens
        self.log_probs += log_probs
        self.response_length += len(tokens)


def roll_out(server: Server, sample: Sample, length: int) -> Sample:
    """As slime asks for it."""
    sampling = {"max_new_tokens": length, "temperature": 1, "ignore_eos": True}
    port = httpx.URL(server.url).port
    args = Namespace(sglang_router_ip="127.0.0.1", sglang_router_port=port, hf_checkpoint=str(TINY))
    return cast("Sample", asyncio.run(nla_rollout.generate(args, sample, sampling)))


NLA_TEXT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n"


def test_nla_rollout(injecting: Server, hf: HuggingFace) -> None:
    """Log-probabilities are Hugging Face's with the vectors in place."""
    prompt = hf.tokenizer.encode(NLA_TEXT, add_special_tokens=False)
    marker = prompt[3]
    places = [place for place, token in enumerate(prompt) if token == marker]
    vectors = vectors_of(len(places), seed=9)
    sample = Sample(NLA_TEXT, activations=vectors, marker=marker)
    for length in (4, 6):  # given up after four tokens, and gone on with
        roll_out(injecting, sample, length)
    expected = hf.logprobs(sample.tokens, edit_of(places, vectors, matched=True))[-len(sample.log_probs) :]
    assert sample.tokens[: len(prompt)] == prompt
    assert len(sample.tokens) == len(prompt) + 6
    assert np.abs(np.array(sample.log_probs) - expected).max() < 1e-3


def test_nla_rollout_refuses_a_server_that_takes_no_vectors(server: Server, hf: HuggingFace) -> None:
    """Rather than generate without them."""
    marker = hf.tokenizer.encode(NLA_TEXT, add_special_tokens=False)[3]
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        roll_out(server, Sample(NLA_TEXT, activations=vectors_of(1, seed=9), marker=marker), 4)
