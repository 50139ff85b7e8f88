"""``make demo``: a real server, real requests, and a table of what came back. Exits 0 only if all of it is right."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt

from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, cosine
from tessera_testing.tiny import TINY

PROMPT = '''\
class Stack:
    """A last-in, first-out collection."""

    def __init__(self):
        self.items = []

    def push(self, item):
'''
SNIPPETS = {
    "read a file": "def read_text(path):\n    with open(path) as handle:\n        return handle.read()\n",
    "an exception": 'class ParseError(ValueError):\n    """Raised when the input is malformed."""\n',
    "imports": "import os\nimport sys\nimport re\nimport json\nfrom collections import deque\n",
    "constants": "O_RDONLY = 0\nO_WRONLY = 1\nO_RDWR = 2\nO_APPEND = 8\n",
}
QUERIES = {
    "read a file": "def load_json(filename):\n    with open(filename) as stream:\n        return json.load(stream)\n",
    "an exception": 'class ConfigError(Exception):\n    """A configuration value is wrong."""\n',
    "imports": "import asyncio\nimport logging\nimport struct\nfrom typing import Any\n",
    "constants": "SIGINT = 2\nSIGQUIT = 3\nSIGKILL = 9\n",
}
LEAST_COSINE = 0.9999


class Step(NamedTuple):
    """One line of the table."""

    what: str
    milliseconds: float
    result: str
    right: bool


class Demo:
    """Sends the demo's requests to one server.

    Args:
        url: of the server.
        hf: reference of the model that it serves.
    """

    def __init__(self, url: str, hf: HuggingFace) -> None:
        self._client = httpx.Client(base_url=url, timeout=120)
        self._hf = hf

    def steps(self) -> Iterator[Step]:
        """Do all, one step after the other."""
        yield self._generate()
        yield self._embed("embed the prompt", cached=False)
        yield self._embed("embed it again, from the cache", cached=True)
        yield self._embed_and_generate()
        yield from self._rank()

    def _generate(self) -> Step:
        answer, milliseconds = self._post("def test_", max_new_tokens=16)
        right = answer["meta_info"]["completion_tokens"] == 16
        return Step("generate 16 tokens", milliseconds, _one_line(answer["text"]), right)

    def _embed(self, what: str, *, cached: bool) -> Step:
        answer, milliseconds = self._post(PROMPT, embedding=True, max_new_tokens=0)
        meta = answer["meta_info"]
        close = cosine(meta["embedding"], self._expected(PROMPT))
        from_cache = meta["cached_tokens"] == meta["prompt_tokens"]
        right = close >= LEAST_COSINE and meta["embedding_tokens"] == meta["prompt_tokens"] and from_cache == cached
        return Step(
            what,
            milliseconds,
            f"{meta['embedding_tokens']} rows, {meta['cached_tokens']} cached; cosine to Hugging Face {close:.7f}",
            right,
        )

    def _embed_and_generate(self) -> Step:
        answer, milliseconds = self._post(PROMPT, embedding=True, max_new_tokens=24)
        close = cosine(answer["meta_info"]["embedding"], self._expected(PROMPT))
        right = close >= LEAST_COSINE and answer["meta_info"]["completion_tokens"] == 24
        return Step("embed, and generate 24 tokens", milliseconds, _one_line(answer["text"]), right)

    def _rank(self) -> Iterator[Step]:
        known, milliseconds = self._embeddings(list(SNIPPETS.values()))
        yield Step(f"embed {len(SNIPPETS)} snippets in one request", milliseconds, ", ".join(SNIPPETS), True)
        for expected, text in QUERIES.items():
            (query,), milliseconds = self._embeddings([text])
            nearness = {name: cosine(query, vector) for name, vector in zip(SNIPPETS, known, strict=True)}
            ranking = sorted(nearness, key=lambda name: -nearness[name])
            result = "  >  ".join(f"{name} {nearness[name]:.2f}" for name in ranking)
            yield Step(f"nearest to {_one_line(text)[:34]}…", milliseconds, result, ranking[0] == expected)

    def _embeddings(self, texts: list[str]) -> tuple[list[npt.NDArray[np.float64]], float]:
        answers, milliseconds = self._post(texts, embedding=True, max_new_tokens=0)
        return [np.array(answer["meta_info"]["embedding"]) for answer in answers], milliseconds

    def _post(self, text: str | list[str], *, max_new_tokens: int, embedding: bool = False) -> tuple[Any, float]:
        sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
        body = {"text": text, "sampling_params": sampling, "return_embedding": embedding}
        begin = time.perf_counter()
        answer = self._client.post("/generate", json=body).raise_for_status().json()
        return answer, 1000 * (time.perf_counter() - begin)

    def _expected(self, text: str) -> npt.NDArray[np.float64]:
        return self._hf.pooled(self._hf.tokenizer(text)["input_ids"], [], "mean", "prompt")


def main() -> int:
    """Run the demo; 0 if every step was right."""
    device = "GPU" if gpu_present() else "CPU (no GPU found)"
    print(f"Starting SGLang with --enable-return-hidden-states on the {device} ...", flush=True)
    with ThreadPoolExecutor(1) as thread:
        reference = thread.submit(HuggingFace, TINY)  # Hugging Face transformers, loaded while the server starts
        steps = run(reference)
    wrong = [step.what for step in steps if not step.right]
    print(f"Wrong: {', '.join(wrong)}" if wrong else f"All {len(steps)} steps are right.")
    return 1 if wrong else 0


def run(reference: Future[HuggingFace]) -> list[Step]:
    """Start the server, and print each step as it is done."""
    steps = []
    with Server(TINY, "--enable-return-hidden-states", progress=_say) as server:
        for step in Demo(server.url, reference.result()).steps():
            steps.append(step)
            print(_line(step), flush=True)
        print("Stopping the server ...", flush=True)
    return steps


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _line(step: Step) -> str:
    return f"{'ok   ' if step.right else 'WRONG'} {step.what:42s} {step.milliseconds:7.1f} ms   {step.result}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
