"""How many bytes the answer to a request can have at most: known before any of it is computed, or queued."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tessera.capabilities.registry import BY_NAME, Requested
from tessera.capability import Shape
from tessera.errors import Described, TooLarge
from tessera.limits import ANSWERS_IN_FLIGHT, LISTED_VALUE_BYTES
from tessera.room import Room
from tessera.sampling import DEFAULT_NEW_TOKENS


class PromptRequest(NamedTuple):
    """One prompt: what it uses, its sampling parameters, and its number of tokens, None where that is not known yet."""

    uses: Requested
    params: Mapping[str, Any]
    tokens: int | None


class AnswerBudget:
    """Refuses what is too large for one answer, before it is queued, and says for how much room it must wait.

    Args:
        shape: of the model.
        most: bytes of one answer, for all prompts and samples of an HTTP request together.
        defaults: sampling parameters of every request that does not give them itself.
    """

    def __init__(self, shape: Shape, most: int, defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._shape = shape
        self._most = most
        self._defaults = defaults
        self.room = Room(ANSWERS_IN_FLIGHT * most)

    def check(self, prompts: Sequence[PromptRequest]) -> int:
        """How many bytes the answer has at most; 0 where nothing of it is large enough to need room.

        Raises:
            TooLarge: more than one answer may have.
        """
        sizes: dict[str, int] = {}
        for own in prompts:
            params = {**self._defaults, **own.params}
            for name, size in self._sizes(own, params).items():
                sizes[name] = sizes.get(name, 0) + _copies(params) * size
        total = sum(sizes.values())
        if total > self._most:
            field = BY_NAME[max(sizes, key=lambda name: (BY_NAME[name].bulky, sizes[name]))].field_names()[0]
            raise TooLarge(field, Described(f"up to {total} bytes"), self._advice())
        return total if any(BY_NAME[name].bulky for name in sizes) else 0

    def _advice(self) -> str:
        return (
            f"at most {self._most} bytes for all prompts and samples of a request (--answer-max-megabytes), where a "
            f"number in a list counts {LISTED_VALUE_BYTES}, in base64 {self._shape.value_bytes}; max_new_tokens counts"
        )

    def _sizes(self, prompt: PromptRequest, params: Mapping[str, Any]) -> dict[str, int]:
        """The bytes of one sample, by capability."""
        tokens = prompt.tokens or 0
        limit = _integer(params.get("max_new_tokens", DEFAULT_NEW_TOKENS), self._shape.context)
        new = max(min(limit, self._shape.context - tokens), 0)
        return {name: own.size(options, self._shape, tokens, new) for name, (own, options) in prompt.uses.items()}


def _copies(params: Mapping[str, Any]) -> int:
    """Samples of a prompt; before several of them SGLang runs it once more, to fill its cache."""
    n = _integer(params.get("n"), 1)
    return n if n == 1 else n + 1


def _integer(value: object, otherwise: int) -> int:
    """The integer under a key, or its default: what SGLang refuses later is not checked here."""
    return max(value, 0) if isinstance(value, int) else otherwise


budget: AnswerBudget | None = None
"""The budget of this server or engine; None until it has started, and where no rows are kept."""
