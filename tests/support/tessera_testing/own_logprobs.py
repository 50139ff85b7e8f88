"""Rows judged by the log-probabilities that SGLang itself reports: of models that it computes in its own way.

A row is right if the model's head makes of it what the server says of the next token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tessera_testing.injected import rows_of
from tessera_testing.reference import Vector

TOKENS = list(range(0, 1024, 16))
"""Of these each row's log-probabilities are asked: 64 numbers, which no other row has."""
ROUNDING = {torch.bfloat16: 2**-6, torch.float32: 2**-18}
"""How far one may be from that of its row, in parts of the row's largest logit. SGLang rounds each logit to bfloat16,
by 2^-8 of it at most: the token's own, and the others, whose sum moves no further than the largest. Twice that, as a
GPU may sum a logit in two parts and round both. In float32 it is the sums that are rounded."""
OF_ITSELF = 2**-21
"""The same in parts of the largest log-probability, which is a float32 itself: it counts where logits are small."""


class OwnLogprobs:
    """A server's log-probabilities, of which those before cached rows are remembered from when they were computed.

    Attributes:
        worst: how far one was from that of its row, at most.
        stock: how far one of the stock server was from ours, at most.
        deviation: how far one of the stock server was from that of the reference's row, at most.
    """

    def __init__(self, reference: Path, dtype: torch.dtype) -> None:
        weights = load_file(reference / "model.safetensors")
        head = weights["lm_head.weight"] if "lm_head.weight" in weights else weights["model.embed_tokens.weight"]
        self._scale = json.loads((reference / "config.json").read_text()).get("logit_scale") or 1.0
        self._exact, self._head = head.double().numpy(), head.to(dtype).double().numpy()
        self._rounding = ROUNDING[dtype]
        self._known: dict[tuple[int, ...], list[float]] = {}
        self.worst = self.stock = self.deviation = 0.0

    @staticmethod
    def fields(start: int) -> dict[str, Any]:
        """What a request asks for. SGLang computes the prompt from ``start`` on, and takes no more from its cache."""
        return {"return_logprob": True, "logprob_start_len": start, "token_ids_logprob": TOKENS}

    def check(self, what: str, ids: Sequence[int], answer: Any, alone: int) -> None:
        """Every row gives what the server reported when it computed it.

        Args:
            what: for the message.
            ids: the prompt's, and those of generated tokens that have a row.
            answer: to a request with `fields`.
            alone: so many rows depend on ids alone, and may be cached.
        """
        reported, rows = self._reported(ids, answer["meta_info"], alone), rows_of(answer).astype(np.float64)
        allowed = self._allowed(rows)
        off = np.abs(self._logprobs(rows, self._head) - reported).max(1)
        self.worst = max(self.worst, float(off.max()))
        wrong = np.flatnonzero(off > allowed).tolist()
        assert wrong == [], f"{what}: log-probabilities are off by {off.max():.1e} from those of these rows: {wrong}"
        others = np.abs(self._logprobs(np.roll(rows, 1, 0), self._head) - reported).max(1)
        assert np.median((others / allowed)[1:]) > 1, f"{what}: log-probabilities do not tell rows apart"

    def check_stock(self, ids: Sequence[int], ours: Any, stock: Any, expected: Vector) -> None:
        """The stock server reports the same of one prompt; how far it is from the reference is noted.

        Args:
            ids: the prompt's, computed anew by both servers alike.
            ours: the answer to a request with `fields`, with rows.
            stock: the stock server's answer, without them.
            expected: the reference's rows.
        """
        reported, by_stock = (self._reported(ids, answer["meta_info"], 0) for answer in (ours, stock))
        off = np.abs(reported - by_stock).max(1)
        wrong = np.flatnonzero(off > self._allowed(rows_of(ours).astype(np.float64))).tolist()
        assert wrong == [], f"the stock server's log-probabilities are others by {off.max():.1e}: {wrong}"
        self.stock = float(off.max())
        self.deviation = float(np.abs(self._logprobs(expected, self._exact) - by_stock).max())

    def remark(self) -> str:
        """What the table says of them."""
        return (
            f"stock SGLang's log-probabilities are off from transformers' by {self.deviation:.1g}, from ours by "
            f"{self.stock:.0e}; ours are those of the rows within {self.worst:.0e}"
        )

    def _allowed(self, rows: Vector) -> Vector:
        """How far the log-probabilities after each of these rows may be off."""
        largest, own = np.abs(rows @ self._head.T).max(1), np.abs(self._logprobs(rows, self._head)).max(1)
        allowed: Vector = self._rounding * self._scale * largest + OF_ITSELF * own
        return allowed

    def _logprobs(self, rows: Vector, head: Vector) -> Vector:
        scores = rows @ head.T * self._scale
        found: Vector = (scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))[:, TOKENS]
        return found

    def _reported(self, ids: Sequence[int], meta: Any, alone: int) -> Vector:
        """After each of the ids ``[n, len(TOKENS)]``."""
        # The prompt's begin with one of the first token, which nothing comes before.
        places = [*meta["input_token_ids_logprobs"][1:], *meta["output_token_ids_logprobs"]]
        assert all([token for _, token, *_ in place] == TOKENS for place in places)
        start = len(ids) - len(places)
        found = [self._known[tuple(ids[: row + 1])] for row in range(start)]
        found += [[value for value, *_ in place] for place in places]
        self._known |= {tuple(ids[: row + 1]): found[row] for row in range(start, alone)}
        return np.array(found)
