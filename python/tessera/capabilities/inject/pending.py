"""What a request injects, while it is in SGLang's main process: its vectors, until positions are known."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tessera import carry
from tessera.capabilities.inject.decoded import Decoded
from tessera.capabilities.inject.options import FIELD
from tessera.carry import SamplingParams
from tessera.errors import BadRequest, Described

NAME = "inject"
"""Name of the capability, under which a request carries its injection: "" until positions are known."""
INJECTED = "injected"
"""The field of an answer that says how many vectors its prompt was computed with."""


@dataclass(slots=True, eq=False)
class Overrides:
    """What one prompt is given.

    Attributes:
        each: its objects.
        injected: how many vectors went to the scheduler; 0 until the prompt's tokens are known.
    """

    each: tuple[Decoded, ...] = ()
    injected: int = 0


class PerPrompt(tuple[Overrides, ...]):
    """What each prompt of a request is given; an empty one is given nothing."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Pending:
    """What a request injects.

    Attributes:
        found: for all prompts, or by prompt.
        placed: whether each prompt's own sampling parameters say what it has of it.
    """

    found: Overrides | PerPrompt
    placed: bool = False

    def of(self, prompt: int) -> Overrides:
        """What one prompt injects."""
        return self.found if isinstance(self.found, Overrides) else self.found[prompt]

    def merge(self) -> None:
        """A list for a single prompt is several objects for it."""
        if isinstance(self.found, PerPrompt):
            self.found = Overrides(tuple(own for part in self.found for own in part.each))
        self.placed = True


class Prompts(NamedTuple):
    """The fields of a request that say what its prompts are."""

    text: Any = None
    input_ids: Any = None
    input_embeds: Any = None
    input_embeds_b64: Any = None


def overrides_of(sampling_params: object) -> Overrides | None:
    """What the prompt with these sampling parameters injects; None where it injects nothing."""
    carried = carry.take(sampling_params)
    live = carry.live(sampling_params) if NAME in carried.wires else None
    pending: Pending | None = None if live is None else live.state.get(NAME)
    found = Overrides() if pending is None else pending.of(carried.prompt)
    return found if found.each else None


def place(pending: Pending, live: carry.Live, prompt_count: int | None, sampling_params: Any) -> Any:
    """The sampling parameters, which say of each prompt what it has of this request.

    Args:
        pending: what the request injects.
        live: of the request.
        prompt_count: how many prompts it has; None for a single one, which is no list of its own.
        sampling_params: one object, one for each prompt, or none.

    Raises:
        BadRequest: there are not as many as there are prompts.
    """
    if prompt_count is None:
        pending.merge()
    if isinstance(pending.found, Overrides):
        pending.placed = True
        return sampling_params
    if len(pending.found) != prompt_count:
        many = f"one value, or one for each of the {prompt_count} prompts"
        raise BadRequest(FIELD, Described(f"a list of {len(pending.found)}"), many)
    own = sampling_params if isinstance(sampling_params, list) else [sampling_params] * prompt_count
    if len(own) != prompt_count:
        many = f"one, or one for each of the {prompt_count} prompts"
        raise BadRequest("sampling_params", Described(f"{len(own)} values"), many)
    pending.placed = True
    return [
        _with_prompt_index(params, live, i, overrides)
        for i, (overrides, params) in enumerate(zip(pending.found, own, strict=True))
    ]


def _with_prompt_index(params: SamplingParams, live: carry.Live, index: int, overrides: Overrides) -> SamplingParams:
    """The parameters of one prompt, with its index where it injects, and without what is the other prompts'."""
    if overrides.each:
        return carry.put(params, live, {NAME: ""}, **{carry.PROMPT: index})
    return carry.without_capability(params, NAME)


def count(prompts: Prompts) -> int | None:
    """How many prompts; None for a single one, which is no list of its own."""
    if prompts.text is not None:
        return len(prompts.text) if isinstance(prompts.text, list) else None
    ids = prompts.input_ids
    return len(ids) if isinstance(ids, list) and ids and isinstance(ids[0], list) else None
