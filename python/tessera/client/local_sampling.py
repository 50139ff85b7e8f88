"""SGLang's sampling parameters, as far as a local model has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tessera.client.errors import Unsupported

TEMPERATURE_OF_GREEDY = 1e-6
"""Below it SGLang takes the most probable token."""


@dataclass(frozen=True, slots=True)
class LocalSampling:
    """Defaults are SGLang's. ``top_k`` below 1 is no limit."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Read a call's options.

        Raises:
            Unsupported: one that only a server has.
            ValueError: a temperature below 0, a top_p outside 0 to 1.
        """
        values: dict[str, Any] = dict(options)
        for name in values:
            if name not in cls.__dataclass_fields__:
                raise Unsupported(f"a local model cannot do {name}=; leave it out, or connect to a server")
        values["stop"] = _tuple(values.get("stop", ()))
        values["stop_token_ids"] = tuple(values.get("stop_token_ids", ()))
        sampling = cls(**values)
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1:
            raise ValueError(f"temperature must be at least 0, top_p in (0, 1], min_p in [0, 1]: {options}")
        return sampling

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature < TEMPERATURE_OF_GREEDY or self.top_k == 1

    def visible(self, text: str, *, ended: bool) -> str:
        """What may be shown of a text that goes on: no half character, and nothing that may begin a stop."""
        if ended:
            return text
        held = max((len(stop) - 1 for stop in self.stop), default=0)
        return text[: max(len(text) - held, 0)].rstrip("\N{REPLACEMENT CHARACTER}")


def _tuple(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)
