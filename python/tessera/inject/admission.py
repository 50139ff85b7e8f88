"""Admit injections at the HTTP edge, and carry them to where the prompt's tokens are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tessera.errors import BadRequest
from tessera.inject import matrices, options
from tessera.inject.model import Model
from tessera.inject.options import FIELD, Override
from tessera.limits import MAX_OVERRIDES

KEY = "tessera_inject"
"""The key in ``sampling_params.custom_params``: `Overrides` in the main process, text on the way to the scheduler.

No client can write it: JSON gives no `Overrides`."""


@dataclass(slots=True, eq=False)
class Overrides:
    """What one prompt asked for.

    Attributes:
        each: its objects.
        error: what was found wrong once the prompt's tokens were known. OpenAI's routes would make a 500 of it.
    """

    each: tuple[Override, ...] = ()
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


def parse(value: object, model: Model, field: str = FIELD) -> Overrides | PerPrompt | None:
    """Read ``input_embed_overrides``: an object, a list of them, or for several prompts a list of such values.

    Args:
        value: what the client sent.
        model: what is served.
        field: its place in the request, for messages.

    Raises:
        BadRequest: the value, a key or a key's value is not allowed.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        return Overrides((_parse(field, value, model),))
    if not 1 <= len(value) <= MAX_OVERRIDES:
        raise BadRequest(field, f"{len(value)} values", f"1 to {MAX_OVERRIDES}")
    return PerPrompt(_of_prompt(f"{field}[{i}]", item, model) for i, item in enumerate(value))


def admit(prompts: Prompts, sampling_params: Any, model: Model) -> tuple[Prompts, Any]:
    """Check everything about injection and fold it into the sampling parameters.

    Matrices become overrides of every position of a prompt of filler tokens.

    Returns:
        The prompts, without matrices and overrides, and the sampling parameters.

    Raises:
        BadRequest: a value, or a combination, is not allowed.
    """
    waiting = [carried(own) for own in _each(sampling_params)]
    if not model.enabled:
        return _without_injection(prompts, model), sampling_params
    found = _matrices(prompts, model)
    if found is None:
        overrides = parse(prompts.overrides, model)
        if overrides is None and isinstance(waiting[0], PerPrompt):  # from a route that does not know its prompts
            overrides = waiting[0]
        return prompts._replace(overrides=None), fold(overrides, prompts, sampling_params)
    single = isinstance(found, Override)
    whole = PerPrompt(Overrides((own,)) for own in ([found] if isinstance(found, Override) else found))
    ids = [[matrices.FILLER_ID] * len(own.each[0].vectors) for own in whole]
    filled = Prompts(input_ids=ids[0] if single else ids)
    return filled, fold(whole[0] if single else whole, filled, sampling_params)


def admit_custom(
    value: object, custom_params: dict[str, Any] | None, model: Model, field: str = FIELD
) -> dict[str, Any] | None:
    """The same for a route that passes on ``custom_params``, and whose prompts `admit` sees later.

    Raises:
        BadRequest: a value is not allowed.
    """
    carried({"custom_params": custom_params})
    if value is None:
        return custom_params
    _check_enabled(field, value, model)
    return {**(custom_params or {}), KEY: parse(value, model, field)}


def fold(found: Overrides | PerPrompt | None, prompts: Prompts, sampling_params: Any) -> Any:
    """The sampling parameters with what each prompt injects: one object, or one for each prompt.

    Raises:
        BadRequest: not as many as there are prompts.
    """
    if found is None:
        return sampling_params
    count = _count(prompts)
    if isinstance(found, PerPrompt) and count is None:  # a list for one prompt: several objects
        found[0].each = tuple(own for part in found for own in part.each)
        found = found[0]
    if isinstance(found, Overrides):
        return _with(found, sampling_params)
    if len(found) != count:
        raise BadRequest(FIELD, f"a list of {len(found)}", f"one value, or one for each of the {count} prompts")
    own = sampling_params if isinstance(sampling_params, list) else [sampling_params] * count
    if len(own) != count:
        raise BadRequest("sampling_params", f"{len(own)} values", f"one, or one for each of the {count} prompts")
    return [_with(overrides, params) for overrides, params in zip(found, own, strict=True)]


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


def _without_injection(prompts: Prompts, model: Model) -> Prompts:
    """On a server without injection SGLang takes ``input_embeds`` itself: only what it survives may reach it."""
    _check_enabled(FIELD, prompts.overrides, model)
    _check_enabled(matrices.BASE64_FIELD, prompts.input_embeds_b64, model)
    found = _matrices(prompts, model)
    if found is None:
        return prompts
    if model.dtype != torch.bfloat16:
        _check_enabled(matrices.LIST_FIELD, f"a matrix for a model of {model.dtype}", model)
    if isinstance(found, Override):
        return prompts._replace(input_embeds=found.vectors.tolist())
    return prompts._replace(input_embeds=[own.vectors.tolist() for own in found])


def _check_enabled(field: str, value: object, model: Model) -> None:
    if value is not None and not model.enabled:
        raise BadRequest(field, value, "only on a server started with --enable-injection")


def _each(sampling_params: Any) -> list[Any]:
    return sampling_params if isinstance(sampling_params, list) and sampling_params else [sampling_params]


def _matrices(prompts: Prompts, model: Model) -> list[Override] | Override | None:
    given = [name for name in Prompts._fields if getattr(prompts, name) is not None]
    matrix = [name for name in given if name.startswith("input_embeds")]
    if not matrix:
        return None
    if len(given) > 1:
        other = next(name for name in given if name != matrix[0])
        other = FIELD if other == "overrides" else other
        raise BadRequest(matrix[0], f"beside {other}", "one of text, input_ids, input_embeds, input_embeds_b64, alone")
    if prompts.input_embeds_b64 is not None:
        return matrices.from_base64(prompts.input_embeds_b64, model)
    return matrices.from_lists(prompts.input_embeds, model)


def _of_prompt(field: str, value: object, model: Model) -> Overrides:
    if value is None:
        return Overrides()
    if not isinstance(value, list):
        return Overrides((_parse(field, value, model),))
    if len(value) > MAX_OVERRIDES:
        raise BadRequest(field, f"{len(value)} values", f"up to {MAX_OVERRIDES}")
    return Overrides(tuple(_parse(f"{field}[{i}]", item, model) for i, item in enumerate(value)))


def _parse(field: str, value: object, model: Model) -> Override:
    return options.parse(field, value, model.bounds(projected=True), model.dtype, model.projections)


def _count(prompts: Prompts) -> int | None:
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
    custom = (params or {}).get("custom_params") or {}
    if not isinstance(custom, dict):
        raise BadRequest("sampling_params.custom_params", custom, "an object")
    if not overrides.each and KEY not in custom:
        return params
    others = {key: value for key, value in custom.items() if key != KEY}
    return {**(params or {}), "custom_params": {**others, KEY: overrides} if overrides.each else others}
