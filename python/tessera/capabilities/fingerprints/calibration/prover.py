"""Asks a server for responses with fingerprints, tampers with them, and has a server verify them."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tessera.capabilities.fingerprints.calibration.distances import Measured
from tessera.capabilities.fingerprints.codec import parse
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.limits import MAX_TOPK

if TYPE_CHECKING:  # the command line is imported where no client is installed
    from tessera.client import Client, Verdict

_SOURCES = Path(__file__).resolve().parents[3]
_PROMPT_CHARACTERS = (200, 600, 1500)
_AT_ONCE = (1, 8, 64)
"""Responses are made in batches of these sizes, for the noise depends on them."""
_CLAIMS_AT_ONCE = 32
_SECONDS = 600.0
"""Time limit of a request: 64 responses are made at once, by the slowest options."""
_HIDDEN_TOKENS = 8
TAMPERED = ("hidden instruction", "changed prompt", "changed early token")
"""Ways of `tamper`."""


class Response(NamedTuple):
    """One response, as its prover claims it."""

    input_ids: list[int]
    output_ids: list[int]
    fingerprints: list[str]


def prompts(count: int, seed: int = 0) -> list[str]:
    """Distinct prompts of different lengths, from this package's own source."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_SOURCES.rglob("*.py")))
    chooser = random.Random(seed)  # noqa: S311 - no secrets
    lengths = [chooser.choice(_PROMPT_CHARACTERS) for _ in range(count)]
    return [text[(start := chooser.randrange(len(text) - length)) : start + length] for length in lengths]


def ask(url: str, count: int, tokens: int) -> list[Response]:
    """Sampled responses with fingerprints, made in batches of different sizes."""
    texts = prompts(count)
    found: list[Response] = []
    with _client(url) as client:
        for i, at_once in enumerate(_AT_ONCE):
            with ThreadPoolExecutor(at_once) as pool:
                found += pool.map(lambda text: _ask(client, text, tokens), texts[i :: len(_AT_ONCE)])
    return found


def _client(url: str) -> Client:
    from tessera.client import Client, Retry, Timeouts

    return Client(url, timeouts=Timeouts(request=_SECONDS, batch=_SECONDS), retry=Retry(times=0))


def _ask(client: Client, text: str, tokens: int) -> Response:
    made = client.generate(text, max_new_tokens=tokens, temperature=0.8, top_p=0.95, ignore_eos=True, fingerprints=True)
    return Response(list(made.input_ids or ()), list(made.output_ids), list(made.fingerprints or ()))


def tamper(response: Response, how: str) -> Response:
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


def check(url: str, responses: list[Response]) -> list[Measured]:
    """The distances that a verifier finds.

    Raises:
        RuntimeError: it could not verify one.
    """
    from tessera.client import Claim

    measured = []
    with _client(url) as client:
        for i in range(0, len(responses), _CLAIMS_AT_ONCE):
            some = responses[i : i + _CLAIMS_AT_ONCE]
            verdicts = client.verify([Claim(*one) for one in some])
            measured += [_measured(one, verdict) for one, verdict in zip(some, verdicts, strict=True)]
    return measured


def _measured(response: Response, verdict: Verdict) -> Measured:
    if verdict.verdict == "unverifiable":
        raise RuntimeError(f"a response could not be verified: {verdict.reason}")
    values = [len(parse("", one, MAX_TOPK).coefficients) for one in response.fingerprints]
    return Measured([Distance(**one) for one in verdict.details["statistics"]], values)
