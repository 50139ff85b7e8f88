"""Answers that are too large are refused, and raw rows wait for room, before a request is queued. Main process."""

from collections.abc import Awaitable, Callable
from typing import Any

from sglang.srt.managers import io_struct

from tessera import answer_bytes, config
from tessera.answer_bytes import AnswerBudget, PromptRequest
from tessera.capabilities import registry
from tessera.capabilities.registry import Requested
from tessera.capability import Shape
from tessera.http.openai import collector_of
from tessera.room import lease
from tessera_patches.engine.model import context_length, dtype, hidden_size
from tessera_patches.engine.options import sampling_defaults
from tessera_patches.engine.tokenizer import raise_if_aborted


def budget(manager: Any) -> AnswerBudget:
    """How large the answers of the model that a ``TokenizerManager`` serves may be."""
    shape = Shape(hidden_size(manager), dtype(manager).itemsize, context_length(manager))
    most = config.flags.answer_max_megabytes * 2**20
    return AnswerBudget(shape, most, sampling_defaults(manager) or {})


def check_at_edge(obj: Any) -> None:
    """Refuse a request of ``/generate`` for what is known before its texts are tokenized.

    Args:
        obj: SGLang's ``GenerateReqInput``, as it came. One of an OpenAI route is checked later: SGLang makes a 500 of
            an error here.

    Raises:
        TooLarge: its answer would be.
    """
    if answer_bytes.budget is None or collector_of(obj.sampling_params) is not None:
        return
    prompts = _prompts(obj)
    given = obj.sampling_params or {}
    params = given[: len(prompts)] if isinstance(given, list) else [given] * len(prompts)
    uses = [registry.carried_by(own) for own in (params if isinstance(given, list) else params[:1])]
    if any(uses):
        each = uses if isinstance(given, list) else uses * len(prompts)
        tokens = map(_tokens, prompts)
        answer_bytes.budget.check([PromptRequest(*own) for own in zip(each, params, tokens, strict=False)])


async def wait_for_room(original: Callable[..., Awaitable[None]], manager: Any, obj: Any) -> None:
    """AROUND ``TokenizerManager._validate_and_resolve_lora``: the request is known to SGLang, and not tokenized."""
    if answer_bytes.budget is not None and isinstance(obj, io_struct.GenerateReqInput):
        amount = await _checked(answer_bytes.budget, manager, obj)
        if amount and (own := lease.get()) is not None:  # an engine's own program waits for nobody
            await own.acquire(amount, lambda: raise_if_aborted(manager, obj))
    await original(manager, obj)


async def _checked(budget: AnswerBudget, manager: Any, obj: Any) -> int:
    each = [obj] if obj.is_single else [obj[i] for i in range(obj.batch_size)]
    uses = [registry.carried_by(one.sampling_params) for one in each]
    if not any(uses):
        return 0
    counts = [await _count(manager, one, own) for one, own in zip(each, uses, strict=True)]
    params = [one.sampling_params for one in each]
    return budget.check([PromptRequest(*own) for own in zip(uses, params, counts, strict=True)])


async def _count(manager: Any, obj: Any, uses: Requested) -> int | None:
    """How many tokens a prompt has, where its answer grows with it; the context's where images add some."""
    if not any(capability.grows(options) for capability, options in uses.values()):
        return None
    if obj.contains_mm_input() or obj.session_params is not None or obj.session_id is not None:
        return context_length(manager)
    if obj.input_ids is None and obj.input_embeds is None:
        ids, _ = await manager._tokenize_texts(obj.text)
        return len(ids)
    return len(obj.input_embeds if obj.input_ids is None else obj.input_ids)


def _prompts(obj: Any) -> list[Any]:
    """Each prompt, as far as it is known before SGLang looks at them."""
    given = obj.text if obj.input_ids is None else obj.input_ids
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    return list(given) if several else [given]


def _tokens(prompt: Any) -> int | None:
    return len(prompt) if isinstance(prompt, list) else None
