"""Canaries: many requests with prompts and options of their own at once, and each answer must be its own.

Prompts share prefixes, so that the prefix cache, chunks and mixed batches are at work; some requests ask for nothing,
some stream, some give up half-way. Every vector is compared with the reference of its own request.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from tessera_testing.reference import HuggingFace, cosine, relative_error

POOLINGS = ("mean", "last", "max", "first")
OVERS = ("prompt", "output", "all")
WIDTH = 256
"""Of the tiny model."""
FLOAT32_ERROR = 1e-5
"""Relative error of rows that the order of sums explains."""
LENGTHS = (1, 2, 15, 16, 17, 33, 63, 64, 65, 120)
"""Around the edges of chunks and pages."""


@dataclass(frozen=True, slots=True)
class Canary:
    """One request: its prompt, how many tokens to generate, what it asks for (None: nothing), whether it gives up.

    Vectors are injected as pairs of a position and a vector's number, in place of the embeddings or, with ``adds``, on
    top of them.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    options: dict[str, str] | None
    stream: bool
    leaves_early: bool
    injected: tuple[tuple[int, int], ...] = ()
    adds: bool = False
    temperature: float = 0

    def body(self) -> dict[str, Any]:
        """The body of its POST /generate."""
        tokens = self.max_new_tokens
        sampling = {"max_new_tokens": tokens, "temperature": self.temperature, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": list(self.prompt), "sampling_params": sampling, "stream": self.stream}
        if self.injected:
            body["input_embed_overrides"] = self._overrides()
        return body if self.options is None else {**body, "return_embedding": self.options}

    def edit(self, embeds: Any) -> Any:
        """What the reference does with the embeddings."""
        for position, number in self.injected:
            own = embeds.new_tensor(_vector(number))
            embeds[position] = embeds[position] + own if self.adds else own
        return embeds

    def _overrides(self) -> dict[str, Any]:
        vectors = np.stack([_vector(number) for _, number in self.injected])
        return {
            "positions": [position for position, _ in self.injected],
            "embeds": base64.b64encode(vectors.tobytes()).decode(),
            "shape": list(vectors.shape),
            "dtype": "float32",
            "mode": "add" if self.adds else "replace",
        }


def _vector(number: int) -> npt.NDArray[np.float32]:
    """Vectors about as long as the tiny model's embeddings."""
    return (np.random.default_rng(number).standard_normal(WIDTH) / 16).astype("<f4")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one answer compares with its own reference.

    Attributes:
        problem: what is wrong besides the vector's values; "" if nothing.
        error: relative error of the vector; 0 where there is none.
        cosine: cosine between vector and reference; 1 where there is none.
        cached: prompt tokens that came from the prefix cache.
    """

    problem: str
    error: float = 0.0
    cosine: float = 1.0
    cached: int = 0


def canaries(
    count: int, vocabulary: int, seed: int, *, leaving: float = 0.0, longest: int = 40, injecting: float = 0.0
) -> list[Canary]:
    """Draw requests: prompts begin with one of a few shared prefixes and end in tokens of their own.

    ``leaving`` is the share of those that give up, ``injecting`` of those that put one of a few vectors at one of a few
    places, so that many share their prefix, their places, or their vectors.
    """
    chooser = random.Random(seed)
    prefixes = [[chooser.randrange(8, vocabulary) for _ in range(max(LENGTHS))] for _ in range(6)]

    def draw() -> Canary:
        own = [chooser.randrange(8, vocabulary) for _ in range(chooser.choice((0, 1, 5, 30)))]
        options = {"pooling": chooser.choice(POOLINGS), "over": chooser.choice(OVERS)}
        leaves = chooser.random() < leaving
        prompt = (*chooser.choice(prefixes)[: chooser.choice(LENGTHS)], *own)
        injects = injecting > 0 and chooser.random() < injecting  # without it the draw stays what it was
        places = [place for place in (0, 9, 10, 11, 12, 30, 62) if place < len(prompt)] if injects else []
        tokens = (2, 3, 9, longest) if options["over"] == "output" else (0, 2, 3, 9, longest)
        return Canary(
            prompt=prompt,
            max_new_tokens=longest if leaves else chooser.choice(tokens),
            options=options if chooser.random() < 0.8 else None,
            stream=leaves or chooser.random() < 0.3,
            leaves_early=leaves,
            injected=tuple((place, chooser.randrange(3)) for place in places if chooser.random() < 0.5),
            adds=injects and chooser.random() < 0.3,
        )

    return [draw() for _ in range(count)]


def fly(url: str, flock: Sequence[Canary], *, at_once: int) -> list[dict[str, Any] | None]:
    """Send all, so many at once. Returns each one's last answer, None for those that left."""
    limits = httpx.Limits(max_connections=at_once)
    # A busy server may close an idle connection while a request is on its way.
    headers = {"Connection": "close"}
    with (
        httpx.Client(base_url=url, timeout=300, limits=limits, headers=headers) as client,
        ThreadPoolExecutor(at_once) as pool,
    ):
        return list(pool.map(lambda canary: _send(client, canary), flock))


def judge(flock: Iterable[Canary], answers: Iterable[dict[str, Any] | None], hf: HuggingFace) -> list[Verdict]:
    """Compare each answer with the reference of its own request; those that left are skipped."""
    return [_judge(canary, answer, hf) for canary, answer in zip(flock, answers, strict=True) if answer is not None]


def fly_exactly(url: str, flock: Sequence[Canary], hf: HuggingFace, at_once: int = 16) -> list[Verdict]:
    """Send all, several at once: each answer is its own request's, with the reference's numbers."""
    judged = judge(flock, fly(url, flock, at_once=at_once), hf)
    problems, error = [verdict.problem for verdict in judged if verdict.problem], max(own.error for own in judged)
    assert problems == [], problems
    assert error <= FLOAT32_ERROR, error
    return judged


def _send(client: httpx.Client, canary: Canary) -> dict[str, Any] | None:
    if not canary.stream:
        answer: dict[str, Any] = client.post("/generate", json=canary.body()).raise_for_status().json()
        return answer
    last = None
    with client.stream("POST", "/generate", json=canary.body()) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                last = json.loads(line.removeprefix("data: "))
                if canary.leaves_early:
                    return None
    return last


def _judge(canary: Canary, answer: dict[str, Any], hf: HuggingFace) -> Verdict:
    meta = answer["meta_info"]
    if canary.options is None:
        return Verdict("an embedding that nobody asked for" if "embedding" in meta else "")
    if "embedding" not in meta:
        return Verdict(f"no embedding: {answer}")
    pooling, over = canary.options["pooling"], canary.options["over"]
    edit = canary.edit if canary.injected else None
    expected = hf.pooled(canary.prompt, answer["output_ids"], pooling, over, edit)
    rows = 1 if pooling in {"first", "last"} else _rows(canary, over)
    problem = "" if meta["embedding_tokens"] == rows else f"{meta['embedding_tokens']} rows, not {rows}: {canary}"
    found = np.array(meta["embedding"])
    return Verdict(problem, relative_error(found, expected), cosine(found, expected), meta["cached_tokens"])


def _rows(canary: Canary, over: str) -> int:
    prompt, output = len(canary.prompt), max(canary.max_new_tokens - 1, 0)
    return {"prompt": prompt, "output": output, "all": prompt + output}[over]
