"""Questions to a server, each with a figure: what a search needs of it, and whether that is right."""

import itertools
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple

import numpy as np

from tessera.client.errors import ClientError, HiddenStatesUnsupported, RequestRefused
from tessera.client.interface import Inference
from tessera.client.probe import fresh_prompt, problem
from tessera.client.results import Floats, Generation

STATE = "Complete the following Lean 4 code:\n\n```lean4\n/- tactic state:\nn : Nat\n⊢ n + 0 = n\n-/\n```"
"""A prover's prompt: more than one line, and characters beyond ASCII."""
TEXTS = ("test input", STATE)
CANDIDATES = 4
MOST_ERROR = 0.01
"""Relative; between two ways to one vector on one server. The noise of bfloat16 is a tenth of it."""


BEHIND = "Give the address of the server itself, or see docs/guide/client.md, Behind a proxy"


class Check(NamedTuple):
    """The answer to one question."""

    fine: bool
    what: str
    figure: str


def checks(client: Inference, hidden_size: int | None = None) -> Iterator[Check]:
    """Ask all questions; stop after the first if nothing answers.

    Args:
        client: of what is asked.
        hidden_size: the width that vectors must have; None for any.
    """
    questions = Questions(client, hidden_size)
    reached = _ask("generates a token", questions.token)
    yield reached
    if not reached.fine:
        return
    yield _ask("server", questions.server)
    for what, question in (
        ("hidden states over HTTP", questions.hidden_states),
        ("the same from the cache", questions.cached),
        ("mean-pooled embedding", questions.embedding),
        ("a proof state's embedding", questions.proof_state),
        ("a batch, binary", questions.batch),
        (f"{CANDIDATES} candidates", questions.candidates),
        ("log-probabilities", questions.log_probs),
    ):
        yield _ask(what, question, proxied=questions.proxied)


class Questions:
    """The questions. Each returns whether the answer is right, and a figure; it may raise `ClientError`."""

    def __init__(self, client: Inference, hidden_size: int | None) -> None:
        self._client = client
        self.proxied = False
        self._hidden_size = hidden_size

    def token(self) -> tuple[bool, str]:
        """Whether address and key are right: one token is generated."""
        self._client.health_check()
        return True, "with this address and key"

    def server(self) -> tuple[bool, str]:
        """Engine, versions, features and model; wrong where a proxy answers, which has no ``/server_info``."""
        try:
            info = self._client.server_info()
        except RequestRefused as error:
            self.proxied = error.status == HTTPStatus.NOT_FOUND
            if not self.proxied:
                raise
            return False, f"no SGLang server but a proxy: it has no /server_info. {BEHIND}"
        on = ", ".join(info.features) or "nothing"
        return True, f"{info.engine}, tessera {info.tessera or 'absent'}, on: {on}; model {info.model}"

    def hidden_states(self) -> tuple[bool, str]:
        """Whether a prompt has as many rows as tokens, all of one width."""
        found = self._rows(TEXTS[0])
        rows = _or_empty(found.hidden_states)
        right = len(rows) == found.prompt_tokens and self._wide(rows)
        return right, f"shape {rows.shape} for {found.prompt_tokens} tokens"

    def cached(self) -> tuple[bool, str]:
        """Whether a new prompt has the same rows again once it is cached."""
        cold, warm = (self._rows(prompt) for prompt in [fresh_prompt()] * 2)
        wrong = problem(cold, warm)
        return not wrong, wrong or f"{warm.cached_tokens} of {warm.prompt_tokens} tokens were cached"

    def embedding(self) -> tuple[bool, str]:
        """Whether an embedding is the mean of the raw rows."""
        rows = _or_empty(self._rows(TEXTS[0]).hidden_states)
        vector = self._client.encode(TEXTS[0]).numpy()
        error = _difference(vector, rows.mean(0))
        figure = f"H {len(vector)}, norm {np.linalg.norm(vector):.3f}, {error:.1e} from the mean of the rows"
        return error <= MOST_ERROR and self._wide(vector), figure

    def proof_state(self) -> tuple[bool, str]:
        """Whether the prompt that a prover sends gets its embedding beside generated tokens."""
        found = self._client.generate_with_embedding(TEXTS[1], max_new_tokens=4, temperature=0)
        vector = None if found.embedding is None else found.embedding.vector
        norm = float(np.linalg.norm(_or_empty(vector)))
        return self._wide(_or_empty(vector)) and norm > 0, f"norm {norm:.3f}, {found.prompt_tokens} tokens"

    def batch(self) -> tuple[bool, str]:
        """Whether each text in a batch has the vector that it has alone."""
        singles = [self._client.encode(text).numpy() for text in TEXTS]
        batch = self._client.encode_batch(TEXTS).numpy()
        worst = max(_difference(found, single) for found, single in zip(batch, singles, strict=True))
        return worst <= MOST_ERROR, f"shape {batch.shape}, {worst:.1e} from one at a time"

    def candidates(self) -> tuple[bool, str]:
        """Whether candidates differ, the best first."""
        found = self._client.generate_candidates(TEXTS[1], CANDIDATES, max_new_tokens=16)
        ordered = all(a.log_prob >= b.log_prob for a, b in itertools.pairwise(found))
        best = f"; the best: {found[0].text[:40]!r}, log-probability {found[0].log_prob:.2f}" if found else ""
        return bool(found) and ordered, f"{len(found)} different{best}"

    def log_probs(self) -> tuple[bool, str]:
        """Whether each token has a log-probability, none above 0."""
        found = self._client.generate(TEXTS[1], max_new_tokens=8, temperature=0, logprobs=True)
        values = _or_empty(found.token_logprobs)
        right = len(values) == len(found.output_ids) and bool((values <= 0).all())
        return right, f"{len(values)} for {len(found.output_ids)} tokens, together {values.sum():.3f}"

    def _rows(self, prompt: str) -> Generation:
        return self._client.generate(prompt, max_new_tokens=1, temperature=0, hidden_states=True)

    def _wide(self, vectors: Floats) -> bool:
        return bool(np.isfinite(vectors).all()) and self._hidden_size in (None, vectors.shape[-1])


def _ask(what: str, question: Callable[[], tuple[bool, str]], *, proxied: bool = False) -> Check:
    """Ask one question. Where rows are missing behind a proxy, the reason is the proxy, not an option of the server."""
    try:
        fine, figure = question()
    except HiddenStatesUnsupported as error:
        return Check(False, what, f"the proxy dropped the field. {BEHIND}" if proxied else str(error))
    except ClientError as error:
        return Check(False, what, str(error))
    return Check(fine, what, figure)


def _or_empty(values: Floats | None) -> Floats:
    return np.zeros((0, 0), np.float32) if values is None else values


def _difference(found: Floats, expected: Floats) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float(np.linalg.norm(found - expected) / max(float(np.linalg.norm(expected)), 1e-12))
