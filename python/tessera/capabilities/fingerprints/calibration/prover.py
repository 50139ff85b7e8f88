"""Asks a server for responses with fingerprints, tampers with them, and has a server verify them."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tessera.capabilities.fingerprints.answer import FINGERPRINTS
from tessera.capabilities.fingerprints.calibration.distances import Measured
from tessera.capabilities.fingerprints.codec import parse
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.limits import MAX_TOPK

if TYPE_CHECKING:  # the command line is imported where no client is installed
    import httpx

Progress = Callable[[int], object]

_SOURCES = Path(__file__).resolve().parents[3]
_PROMPT_CHARACTERS = (200, 600, 1500)
_AT_ONCE = (1, 8, 64)
"""Responses are made in batches of these sizes, for the noise depends on them."""
_CLAIMS_AT_ONCE = 32
_HIDDEN_TOKENS = 8
TAMPERED = ("hidden instruction", "changed prompt", "changed early token")
"""Ways of `tampered`."""


class Response(NamedTuple):
    """What a prover claims."""

    input_ids: list[int]
    output_ids: list[int]
    fingerprints: list[str]


def prompts(count: int, seed: int = 0) -> list[str]:
    """Pieces of this package's own source, of different lengths, each another."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_SOURCES.rglob("*.py")))
    chooser = random.Random(seed)  # noqa: S311 - no secrets
    lengths = [chooser.choice(_PROMPT_CHARACTERS) for _ in range(count)]
    return [text[(start := chooser.randrange(len(text) - length)) : start + length] for length in lengths]


def ask(url: str, count: int, tokens: int, progress: Progress = bool) -> list[Response]:
    """Sampled responses with fingerprints, made in batches of different sizes."""
    import httpx

    texts = prompts(count)
    with httpx.Client(base_url=url, timeout=600, limits=httpx.Limits(max_connections=max(_AT_ONCE))) as client:
        found: list[Response] = []
        for i, at_once in enumerate(_AT_ONCE):
            share = texts[i :: len(_AT_ONCE)]
            with ThreadPoolExecutor(at_once) as pool:
                for response in pool.map(lambda text: _ask(client, text, tokens), share):
                    found.append(response)
                    progress(1)
    return found


def _ask(client: httpx.Client, text: str, tokens: int) -> Response:
    body = {
        "text": text,
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0.8, "top_p": 0.95, "ignore_eos": True},
        "return_toploc_fingerprints": True,
        "return_input_ids": True,
        "return_output_ids": True,
    }
    meta = client.post("/generate", json=body).raise_for_status().json()["meta_info"]
    return Response(meta["input_ids"], meta["output_ids"], meta[FINGERPRINTS])


def tampered(response: Response, how: str) -> Response:
    """The response as claimed by somebody who changed it.

    "hidden instruction": the prompt began with tokens that the claim leaves out. "changed prompt", "changed early
    token": another token in the middle of the prompt, or the second one of the answer.
    """
    if how == "hidden instruction":
        return response._replace(input_ids=response.input_ids[_HIDDEN_TOKENS:])
    ids = list(response.input_ids if how == "changed prompt" else response.output_ids)
    place = len(ids) // 2 if how == "changed prompt" else 1
    others = sorted(set(response.input_ids + response.output_ids) - {ids[place]})
    ids[place] = others[len(others) // 2]
    return response._replace(input_ids=ids) if how == "changed prompt" else response._replace(output_ids=ids)


def check(url: str, responses: list[Response], progress: Progress = bool) -> list[Measured]:
    """The distances that a verifier finds.

    Raises:
        RuntimeError: it could not verify one.
    """
    import httpx

    measured = []
    for i in range(0, len(responses), _CLAIMS_AT_ONCE):
        some = responses[i : i + _CLAIMS_AT_ONCE]
        body = {"claims": [response._asdict() for response in some]}
        results = httpx.post(f"{url}/v1/toploc/verify", json=body, timeout=600).raise_for_status().json()["results"]
        measured += [_measured(one, result) for one, result in zip(some, results, strict=True)]
        progress(len(some))
    return measured


def _measured(response: Response, result: dict[str, Any]) -> Measured:
    if result["verdict"] == "unverifiable":
        raise RuntimeError(f"a response could not be verified: {result['reason']}")
    values = [len(parse("", one, MAX_TOPK).coefficients) for one in response.fingerprints]
    return Measured([Distance(**one) for one in result["statistics"]], values)
