"""Admit injections at the HTTP edge."""

from __future__ import annotations

from typing import Any

import torch

from tessera.errors import BadRequest, Described, TooLarge
from tessera.inject import matrices, options
from tessera.inject.carry import KEY, Overrides, PerPrompt, Prompts, carried, count, fold
from tessera.inject.model import Model
from tessera.inject.options import FIELD, Override
from tessera.limits import MAX_OVERRIDES, MAX_VECTOR_COPIES


class Budget:
    """The bytes of vectors that one request may hold: projections and copies make more of them than its body has."""

    def __init__(self, model: Model) -> None:
        self._most = MAX_VECTOR_COPIES * model.max_bytes
        self._taken = 0

    def take(self, field: str, size: int) -> None:
        """Count some more.

        Raises:
            TooLarge: together they are too many.
        """
        self._taken += size
        if self._taken > self._most:
            allowed = (
                f"up to {self._most} for all prompts and samples ({MAX_VECTOR_COPIES} x --injection-max-megabytes)"
            )
            raise TooLarge(field, Described(f"{self._taken} bytes of vectors"), allowed)


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
    budget = Budget(model)
    if not isinstance(value, list):
        return Overrides((_parse(field, value, model, budget),))
    if not 1 <= len(value) <= MAX_OVERRIDES:
        raise BadRequest(field, Described(f"{len(value)} values"), f"1 to {MAX_OVERRIDES}")
    return PerPrompt(_of_prompt(f"{field}[{i}]", item, model, budget) for i, item in enumerate(value))


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
    prompts, params = _folded(prompts, sampling_params, model, waiting[0])
    _check_copies(prompts, params, model)
    return prompts, params


def _folded(
    prompts: Prompts, sampling_params: Any, model: Model, waiting: Overrides | PerPrompt | None
) -> tuple[Prompts, Any]:
    found = _matrices(prompts, model)
    if found is None:
        overrides = parse(prompts.overrides, model)
        if overrides is None and isinstance(waiting, PerPrompt):  # from a route that does not know its prompts
            return prompts._replace(overrides=None), _fold_late(waiting, prompts, sampling_params)
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


def _check_copies(prompts: Prompts, params: Any, model: Model) -> None:
    """Each prompt, and each of its samples, takes a copy of its vectors to the scheduler: a small body could send many.

    Raises:
        TooLarge: together they are too large.
    """
    each = params if isinstance(params, list) else [params]
    prompts_of_each = 1 if isinstance(params, list) else count(prompts) or 1
    budget = Budget(model)
    for own in each:
        overrides = carried(own)
        if isinstance(overrides, Overrides):
            samples = own.get("n")
            copies = prompts_of_each * (max(samples, 1) if isinstance(samples, int) else 1)
            try:
                budget.take(FIELD, copies * sum(one.vectors.nbytes for one in overrides.each))
            except TooLarge as error:
                overrides.error = error
                raise


def _fold_late(overrides: PerPrompt, prompts: Prompts, sampling_params: Any) -> Any:
    """`fold` for a route that makes a 500 of what is raised here, and asks for the error afterwards."""
    try:
        return fold(overrides, prompts, sampling_params)
    except BadRequest as error:
        overrides[0].error = error
        raise


def _without_injection(prompts: Prompts, model: Model) -> Prompts:
    """On a server without injection SGLang takes ``input_embeds`` itself: only what it survives may reach it."""
    _check_enabled(FIELD, prompts.overrides, model)
    _check_enabled(matrices.BASE64_FIELD, prompts.input_embeds_b64, model)
    found = _matrices(prompts, model)
    if found is None:
        return prompts
    if model.dtype != torch.bfloat16:
        _check_enabled(matrices.LIST_FIELD, Described(f"a matrix for a model of {model.dtype}"), model)
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
        raise BadRequest(
            matrix[0], Described(f"beside {other}"), "one of text, input_ids, input_embeds, input_embeds_b64, alone"
        )
    if prompts.input_embeds_b64 is not None:
        return matrices.from_base64(prompts.input_embeds_b64, model)
    return matrices.from_lists(prompts.input_embeds, model)


def _of_prompt(field: str, value: object, model: Model, budget: Budget) -> Overrides:
    if value is None:
        return Overrides()
    if not isinstance(value, list):
        return Overrides((_parse(field, value, model, budget),))
    if len(value) > MAX_OVERRIDES:
        raise BadRequest(field, Described(f"{len(value)} values"), f"up to {MAX_OVERRIDES}")
    return Overrides(tuple(_parse(f"{field}[{i}]", item, model, budget) for i, item in enumerate(value)))


def _parse(field: str, value: object, model: Model, budget: Budget) -> Override:
    found = options.parse(field, value, model.bounds(projected=True), model.dtype, model.projections)
    budget.take(f"{field}.embeds", found.vectors.nbytes)
    return found
