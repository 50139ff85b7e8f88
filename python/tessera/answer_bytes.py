"""How many bytes the answer to a request can have at most: known before any of it is computed, or queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.admission import Asked, asked
from tessera.embed.options import FIELD as EMBED_FIELD
from tessera.embed.options import EmbedOptions, Encoding
from tessera.errors import Described, TooLarge
from tessera.fingerprint.chunks import count
from tessera.limits import ANSWERS_IN_FLIGHT, LISTED_VALUE_BYTES
from tessera.room import Room
from tessera.rows.span import bounds
from tessera.sampling import DEFAULT_NEW_TOKENS
from tessera.states.options import FIELD as STATES_FIELD
from tessera.states.options import Format, StateOptions

_PROVEN_BYTES = 8
"""One value of a fingerprint: its place and bits, in base64."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of the model decides how many bytes there are.

    Attributes:
        hidden_size: H.
        value_bytes: of one value of a row, in the model's dtype.
        context: the most tokens of prompt and response.
        topk: how many values a fingerprint proves.
    """

    hidden_size: int
    value_bytes: int
    context: int
    topk: int


class AnswerBudget:
    """Refuses what is too large for one answer, before it is queued, and says for how much room it must wait.

    Args:
        shape: of the model.
        most: bytes of one answer, for all prompts and samples of an HTTP request together.
    """

    def __init__(self, shape: Shape, most: int) -> None:
        self._shape = shape
        self._most = most
        self.room = Room(ANSWERS_IN_FLIGHT * most)

    def check(self, params: Sequence[dict[str, Any]], prompts: Sequence[int | None]) -> int:
        """How many bytes the answer has at most; 0 where it has no raw rows, which alone need room.

        Args:
            params: sampling parameters of each prompt, with what it asked for.
            prompts: how many tokens each has; None where that is not known yet, and not counted.

        Raises:
            TooLarge: more than one answer may have.
        """
        wanted = [asked(own) for own in params]
        if not any(own.rows for own in wanted):
            return 0
        each = zip(wanted, params, prompts, strict=True)
        total = sum(_copies(own) * self._bytes(want, own, tokens or 0) for want, own, tokens in each if want.rows)
        if total > self._most:
            field = STATES_FIELD if any(own.states for own in wanted) else EMBED_FIELD
            raise TooLarge(field, Described(f"up to {total} bytes"), self._advice())
        return total if any(own.states for own in wanted) else 0

    def _advice(self) -> str:
        return (
            f"at most {self._most} bytes for all prompts and samples of a request (--answer-max-megabytes), where a "
            f"number in a list counts {LISTED_VALUE_BYTES}, in base64 {self._shape.value_bytes}; max_new_tokens counts"
        )

    def _bytes(self, wanted: Asked, params: dict[str, Any], tokens: int) -> int:
        limit = _integer(params.get("max_new_tokens", DEFAULT_NEW_TOKENS), self._shape.context)
        new = max(min(limit, self._shape.context - tokens), 0)
        total = 0 if wanted.states is None else _rows(wanted.states, tokens, new) * self._row_bytes(wanted.states)
        if wanted.embed is not None:
            total += _vector_bytes(wanted.embed, self._shape.hidden_size)
        if wanted.fingerprints is not None:
            total += (1 + count(new)) * self._shape.topk * _PROVEN_BYTES
        return total

    def _row_bytes(self, options: StateOptions) -> int:
        width = LISTED_VALUE_BYTES if options.format is Format.LIST else self._shape.value_bytes
        return self._shape.hidden_size * width


def _rows(options: StateOptions, prompt_tokens: int, new_tokens: int) -> int:
    if options.positions is not None:
        return len(options.positions)
    start, end = bounds(options.over, prompt_tokens, new_tokens)
    return 1 if options.last else end - start


def _vector_bytes(options: EmbedOptions, hidden_size: int) -> int:
    return (options.dimensions or hidden_size) * (
        4 if options.encoding_format is Encoding.BASE64 else LISTED_VALUE_BYTES
    )


def _copies(params: dict[str, Any]) -> int:
    """Samples of a prompt; before several of them SGLang runs it once more, to fill its cache."""
    n = _integer(params.get("n"), 1)
    return n if n == 1 else n + 1


def _integer(value: object, otherwise: int) -> int:
    """What SGLang refuses later is not looked at here."""
    return max(value, 0) if isinstance(value, int) else otherwise
