"""Admit injections at the HTTP edge."""

from typing import Any

import torch

from tessera.capabilities.inject import matrices
from tessera.capabilities.inject.decoded import Decoded, with_vectors
from tessera.capabilities.inject.model import Model
from tessera.capabilities.inject.options import FIELD, OfPrompt, Override
from tessera.capabilities.inject.pending import NAME, Overrides, Pending, PerPrompt, Prompts, count, overrides_of, place
from tessera.carry import Live
from tessera.errors import BadRequest, Described, TooLarge
from tessera.limits import MAX_VECTOR_COPIES


class Budget:
    """The bytes of vectors that one request may hold: projections and copies make more of them than its body has."""

    def __init__(self, model: Model) -> None:
        self._most = MAX_VECTOR_COPIES * model.max_bytes
        self._used = 0

    def charge(self, field: str, size: int) -> None:
        """Count more bytes.

        Raises:
            TooLarge: together they are too many.
        """
        self._used += size
        if self._used > self._most:
            allowed = (
                f"up to {self._most} for all prompts and samples ({MAX_VECTOR_COPIES} x --injection-max-megabytes)"
            )
            raise TooLarge(field, Described(f"{self._used} bytes of vectors"), allowed)


def decode_overrides(
    given: Override | tuple[OfPrompt, ...] | None, model: Model, field: str = FIELD
) -> Overrides | PerPrompt | None:
    """Decode ``input_embed_overrides``: an object, a list of them, or for several prompts a list of such values.

    Args:
        given: what the client sent.
        model: what is served.
        field: its place in the request, for messages.

    Raises:
        BadRequest: a value is not allowed.
    """
    if given is None:
        return None
    budget = Budget(model)
    if isinstance(given, Override):
        return _of_prompt(field, given, model, budget)
    return PerPrompt(_of_prompt(f"{field}[{i}]", own, model, budget) for i, own in enumerate(given))


def place_vectors(prompts: Prompts, sampling_params: Any, model: Model, live: Live | None) -> tuple[Prompts, Any]:
    """Prompts without matrices, and sampling parameters that say what each prompt injects.

    Matrices become overrides of every position of a prompt of filler tokens.

    Raises:
        BadRequest: a value, or a combination, is not allowed.
    """
    pending = None if live is None else live.state.get(NAME)
    if live is None or (pending is not None and pending.placed):
        return prompts, sampling_params
    found = _matrices(prompts, model, overrides=pending is not None)
    if found is not None:
        single = isinstance(found, Decoded)
        whole = PerPrompt(Overrides((own,)) for own in ([found] if isinstance(found, Decoded) else found))
        ids = [[matrices.FILLER_ID] * len(own.each[0].vectors) for own in whole]
        prompts = Prompts(input_ids=ids[0] if single else ids)
        pending = live.state[NAME] = Pending(whole)
    if pending is None:
        return prompts, sampling_params
    return prompts, place(pending, live, count(prompts), sampling_params)


def check_copies(prompts: Prompts, params: Any, model: Model) -> None:
    """Each prompt, and each of its samples, takes a copy of its vectors to the scheduler: a small body could send many.

    Raises:
        TooLarge: together they are too large.
    """
    each = params if isinstance(params, list) else [params]
    prompts_of_each = 1 if isinstance(params, list) else count(prompts) or 1
    budget = Budget(model)
    for own in each:
        overrides = overrides_of(own)
        if overrides is not None:
            samples = own.get("n")
            copies = prompts_of_each * (max(samples, 1) if isinstance(samples, int) else 1)
            budget.charge(FIELD, copies * sum(one.vectors.nbytes for one in overrides.each))


def without_injection(prompts: Prompts, model: Model) -> Prompts:
    """On a server without injection SGLang takes ``input_embeds`` itself: only what it survives may reach it.

    Raises:
        BadRequest: a matrix is not one that it survives.
    """
    found = _matrices(prompts, model)
    if found is None:
        return prompts
    if model.dtype != torch.bfloat16:
        check_enabled(matrices.LIST_FIELD, Described(f"a matrix for a model of {model.dtype}"), model)
    if isinstance(found, Decoded):
        return prompts._replace(input_embeds=found.vectors.tolist())
    return prompts._replace(input_embeds=[own.vectors.tolist() for own in found])


def check_enabled(field: str, value: object, model: Model) -> None:
    """Refuse a field that is given to a server without injection.

    Raises:
        BadRequest: it is.
    """
    if value is not None and not model.enabled:
        raise BadRequest(field, value, "only on a server started with --enable-injection")


def _matrices(prompts: Prompts, model: Model, *, overrides: bool = False) -> list[Decoded] | Decoded | None:
    given = [name for name in Prompts._fields if getattr(prompts, name) is not None]
    matrix = [name for name in given if name.startswith("input_embeds")]
    if not matrix:
        return None
    others = [name for name in given if name != matrix[0]] + [FIELD] * overrides
    if others:
        raise BadRequest(
            matrix[0], Described(f"beside {others[0]}"), "one of text, input_ids, input_embeds, input_embeds_b64, alone"
        )
    if prompts.input_embeds_b64 is not None:
        return matrices.from_base64(prompts.input_embeds_b64, model)
    return matrices.from_lists(prompts.input_embeds, model)


def _of_prompt(field: str, given: OfPrompt, model: Model, budget: Budget) -> Overrides:
    if given is None:
        return Overrides()
    if isinstance(given, Override):
        return Overrides((_decoded(field, given, model, budget),))
    return Overrides(tuple(_decoded(f"{field}[{i}]", own, model, budget) for i, own in enumerate(given)))


def _decoded(field: str, given: Override, model: Model, budget: Budget) -> Decoded:
    found = with_vectors(field, given, model.bounds(projected=True), model.dtype, model.projections)
    budget.charge(f"{field}.embeds", found.vectors.nbytes)
    return found
