"""What a request injects, on its way through SGLang's main process: inside the sampling parameters of its prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tessera.errors import BadRequest, Described
from tessera.inject.options import FIELD, Override

KEY = "tessera_inject"
"""The key in ``sampling_params.custom_params``: `Overrides` in the main process, text on the way to the scheduler.

No client can write it: JSON gives no `Overrides`."""
INJECTED = "injected"
"""The field of an answer that says how many vectors its prompt was computed with."""


@dataclass(slots=True, eq=False)
class Overrides:
    """What one prompt asked for.

    Attributes:
        each: its objects.
        injected: how many vectors went to the scheduler; 0 until the prompt's tokens are known.
        error: what was found wrong once the prompt's tokens were known. OpenAI's routes would make a 500 of it.
    """

    each: tuple[Override, ...] = ()
    injected: int = 0
    error: BadRequest | None = None


class PerPrompt(tuple[Overrides, ...]):
    """What each prompt of a request asked for; an empty one asked for nothing."""

    __slots__ = ()


class Prompts(NamedTuple):
    """The fields of a request that say what its prompts are, and what is injected."""

    text: Any = None
    input_ids: Any = None
    input_embeds: Any = None
    input_embeds_b64: Any = None
    overrides: Any = None

    @property
    def injects(self) -> bool:
        """Whether vectors are among them."""
        return any(value is not None for value in (self.input_embeds, self.input_embeds_b64, self.overrides))


def fold(found: Overrides | PerPrompt | None, prompts: Prompts, sampling_params: Any) -> Any:
    """The sampling parameters with what each prompt injects: one object, or one for each prompt.

    Raises:
        BadRequest: not as many as there are prompts.
    """
    if found is None:
        return sampling_params
    prompt_count = count(prompts)
    if prompt_count is None:
        found = _of_one_prompt(found)
    if isinstance(found, Overrides):
        return _with(found, sampling_params)
    if len(found) != prompt_count:
        raise BadRequest(
            FIELD, Described(f"a list of {len(found)}"), f"one value, or one for each of the {prompt_count} prompts"
        )
    own = sampling_params if isinstance(sampling_params, list) else [sampling_params] * prompt_count
    if len(own) != prompt_count:
        raise BadRequest(
            "sampling_params", Described(f"{len(own)} values"), f"one, or one for each of the {prompt_count} prompts"
        )
    return [_with(overrides, params) for overrides, params in zip(found, own, strict=True)]


def _of_one_prompt(found: Overrides | PerPrompt) -> Overrides:
    """A list for one prompt is several objects for it."""
    if isinstance(found, PerPrompt):
        found[0].each = tuple(own for part in found for own in part.each)
        return found[0]
    return found


def carried(sampling_params: object) -> Overrides | PerPrompt | None:
    """What `fold` put there.

    Raises:
        BadRequest: a client wrote the reserved key itself.
    """
    custom = sampling_params.get("custom_params") if isinstance(sampling_params, dict) else None
    found = custom.get(KEY) if isinstance(custom, dict) else None
    if found is None or isinstance(found, Overrides | PerPrompt):
        return found
    raise BadRequest("sampling_params.custom_params", custom, f"no {KEY}: use {FIELD}")


def raise_late_error(custom_params: dict[str, Any] | None) -> None:
    """After a request of a route that passed on what `admit_custom` gave it.

    Raises:
        BadRequest: what was found wrong with one of its prompts.
    """
    found = carried({"custom_params": custom_params})
    for overrides in found if isinstance(found, PerPrompt) else [found]:
        if overrides is not None and overrides.error is not None:
            raise overrides.error


def on_wire(sampling_params: dict[str, Any], wire: str) -> dict[str, Any]:
    """The sampling parameters with the text for the scheduler in place of the overrides."""
    return {**sampling_params, "custom_params": {**sampling_params["custom_params"], KEY: wire}}


def count(prompts: Prompts) -> int | None:
    """How many prompts; None for a single one, which is no list of its own."""
    if prompts.text is not None:
        return len(prompts.text) if isinstance(prompts.text, list) else None
    ids = prompts.input_ids
    return len(ids) if isinstance(ids, list) and ids and isinstance(ids[0], list) else None


def _with(overrides: Overrides, params: Any) -> Any:
    """The parameters of one prompt with its own overrides, and no more."""
    if isinstance(params, list):
        return [_with(overrides, own) for own in params]
    if params is not None and not isinstance(params, dict):
        raise BadRequest("sampling_params", params, "an object, or a list of objects")
    custom = (params or {}).get("custom_params")
    custom = {} if custom is None else custom
    if not isinstance(custom, dict):
        raise BadRequest("sampling_params.custom_params", custom, "an object")
    if not overrides.each and KEY not in custom:
        return params
    others = {key: value for key, value in custom.items() if key != KEY}
    return {**(params or {}), "custom_params": {**others, KEY: overrides} if overrides.each else others}
