"""Do rows and fingerprints of one MoE runner agree with those of the others? What `bench_moe.py` asks each server.

Embeddings (``NAME-rows.npy``) and claims (``NAME-claims.json``) lie in a folder, so that runners whose servers never
ran at the same time can be compared, also in a later run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from load import FIRST_ID, LAST_ID
from tessera.capabilities.fingerprints.calibration import prover
from tessera.capabilities.fingerprints.calibration.distances import count_accepted, thresholds
from tessera.capabilities.fingerprints.thresholds import Thresholds

PROMPTS, LONGEST = 48, 512
CLAIMS, CLAIM_TOKENS = 96, 64
NOISE = 1e-3
"""Distance (1 - cosine) of embeddings by two runners that count as the same: on an H200 FP8 kernels were 0.9e-3 apart,
and one runner 0.2e-3 from itself in another batch."""
SECONDS = 120.0
"""How long an answer may take; a runner's kernels may be compiled when a shape is first seen."""

Rows = np.ndarray[Any, Any]


def measured(url: str, backend: str, folder: Path) -> dict[str, Any]:
    """One runner's embeddings against themselves in another batch, and its fingerprints.

    Raises:
        httpx.HTTPError: the server did not answer.
        RuntimeError: it could not verify.
    """
    alone, together = _embeddings(url, 1), _embeddings(url, PROMPTS)
    np.save(folder / f"{backend}-rows.npy", alone)
    return {"in_a_batch": _cosines(alone, together), "fingerprints": _fingerprints(url, backend, folder)}


def compared(backends: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Each runner's embeddings against those of the first, and of which earlier one it has the very bits.

    Two names with the same bits, in 48 prompts of different lengths, ran the same kernels: SGLang runs `triton` under
    several names.
    """
    rows = {name: np.load(folder / f"{name}-rows.npy") for name in backends}
    return {
        name: {
            "reference": backends[0],
            "to_reference": _cosines(own, rows[backends[0]]),
            "bits_of": next((other for other in backends[:i] if np.array_equal(rows[other], own)), None),
        }
        for i, (name, own) in enumerate(rows.items())
    }


def beyond_noise(rows: dict[str, Any]) -> bool:
    """Whether a runner that `compared` looked at gives other embeddings than the reference."""
    return bool(1 - rows["to_reference"]["least"] > NOISE)


def _embeddings(url: str, at_once: int) -> Rows:
    """The means over fixed prompts of 1 to `LONGEST` tokens, ``[PROMPTS, H]``, computed anew."""
    chooser = random.Random("moe")
    lengths = [chooser.randrange(1, LONGEST) for _ in range(PROMPTS)]
    inputs = [[chooser.randrange(FIRST_ID, LAST_ID) for _ in range(length)] for length in lengths]
    found: list[Any] = []
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        client.post("/flush_cache?timeout=30").raise_for_status()
        for start in range(0, PROMPTS, at_once):
            body = {"input_ids": inputs[start : start + at_once], "sampling_params": {"max_new_tokens": 0}}
            answers = client.post("/generate", json=body | {"return_embedding": True}).raise_for_status().json()
            found += [answer["meta_info"]["embedding"] for answer in answers]
    return np.array(found)


def _cosines(a: Rows, b: Rows) -> dict[str, float]:
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {"least": round(float(cosines.min()), 6), "median": round(float(np.median(cosines)), 6)}


def _fingerprints(url: str, backend: str, folder: Path) -> dict[str, Any]:
    """By the runner that made them: how many responses pass here, with calibrated and with the paper's limits.

    Claims are kept before others are verified: of two runners that are asked at the same time, one finds the other's.
    """
    made = prover.ask(url, CLAIMS, CLAIM_TOKENS)
    draft = folder / f"{backend}-claims.part"
    draft.write_text(json.dumps([one._asdict() for one in made]))
    draft.rename(folder / f"{backend}-claims.json")
    found = {}
    for path in sorted(folder.glob("*-claims.json")):
        responses = [prover.Response(**one) for one in json.loads(path.read_text())]
        httpx.post(f"{url}/flush_cache?timeout=30", timeout=SECONDS).raise_for_status()
        distances = prover.check(url, responses)
        limits = thresholds(distances[::2])
        judged = distances[1::2]
        found[path.name.removesuffix("-claims.json")] = {
            "thresholds": {name: round(value, 5) for name, value in asdict(limits).items()},
            "passed": count_accepted(judged, limits),
            "passed_by_the_paper": count_accepted(judged, Thresholds()),
            "of": len(judged),
        }
    return found
