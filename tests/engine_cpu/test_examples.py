"""The worked examples, against the real server."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import nla_rollout
from tessera.launching.server import Server
from tessera_testing.injected import edit_of, prompt_of, vectors_of
from tessera_testing.reference import HuggingFace

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
    """What the example uses of slime's."""

    def __init__(self, tokens: list[int], **metadata: Any) -> None:
        self.tokens, self.metadata = tokens, metadata
        self.log_probs: list[float] = []

    def append_response_tokens(self, _: Any, *, tokens: list[int], log_probs: list[float], **others: Any) -> None:
        """What was generated, and SGLang's log-probabilities."""
        assert {*others} == {"trainable", "meta_info", "text"}
        self.tokens, self.log_probs = [*self.tokens, *tokens], log_probs


def test_nla_rollout(injecting: Server, server: Server, hf: HuggingFace) -> None:
    """Log-probabilities are Hugging Face's with the vectors in place; a server that cannot take them is not used."""
    marker, vectors = 7, vectors_of(2, seed=9)
    prompt = [marker if place in {5, 9} else token for place, token in enumerate(prompt_of(20, seed=61))]
    sampling = {"max_new_tokens": 6, "temperature": 1, "ignore_eos": True}

    def roll_out(server: Server) -> Sample:
        args = Namespace(sglang_router_ip="127.0.0.1", sglang_router_port=httpx.URL(server.url).port)
        sample: Sample = asyncio.run(
            nla_rollout.generate(args, Sample(prompt, activations=vectors, marker=marker), sampling)
        )
        return sample

    sample = roll_out(injecting)
    expected = hf.logprobs(sample.tokens, edit_of([5, 9], vectors, matched=True))[-len(sample.log_probs) :]
    assert len(sample.tokens) == len(prompt) + 6
    assert np.abs(np.array(sample.log_probs) - expected).max() < 1e-3
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        roll_out(server)
