"""Injection: positions are found once the prompt's tokens are known. Main process."""

from collections.abc import Callable, Sequence
from typing import Any

from tessera import carry, config
from tessera.capabilities.inject.capability import PROMPTS, VECTORS
from tessera.capabilities.inject.model import Model
from tessera.capabilities.inject.options import FIELD
from tessera.capabilities.inject.pending import NAME, Overrides, overrides_of
from tessera.capabilities.inject.projections import Projections
from tessera.capabilities.inject.resolve import Tokenize, resolve
from tessera.errors import BadRequest, Described
from tessera.telemetry import count
from tessera_patches.engine.model import context_length, dtype, hidden_size, vocabulary
from tessera_patches.engine.tokenizer import longest_prompt


def resolve_positions(
    original: Callable[..., Any], manager: Any, obj: Any, input_text: Any, input_ids: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND ``TokenizerManager._create_tokenized_object``."""
    overrides: Overrides | None = overrides_of(obj.sampling_params)
    carried = carry.take(obj.sampling_params)
    if overrides is None:
        return original(manager, obj, input_text, input_ids, *args, **kwargs)
    own = len(input_ids) - (carried.tail or 0)  # what was generated was never injected
    if carried.tail is None:  # the scheduler cuts a longer prompt, or refuses it
        own = min(own, longest_prompt(manager))
    try:
        refuse_images(obj)
        tokenize = _tokenize(manager.tokenizer)
        injection = resolve(overrides.each, input_ids[:own], vocabulary(manager), tokenize)
    except BadRequest as error:
        carry.note_error(obj.sampling_params, error)
        if not obj.stream:
            raise
        raise ValueError(str(error)) from error  # SGLang writes it into the stream, whose status is sent
    overrides.injected = len(injection.positions)
    count(PROMPTS)
    count(VECTORS, overrides.injected)
    plain = obj.sampling_params
    obj.sampling_params = carry.with_wire(plain, NAME, injection.to_wire())
    try:
        return original(manager, obj, input_text, input_ids, *args, **kwargs)
    finally:
        obj.sampling_params = plain


def refuse_images(obj: Any) -> None:
    """Raises `BadRequest` for a request with vectors and images, videos or sounds."""
    if obj.contains_mm_input():  # what stands for an image has ids of its own
        raise BadRequest(FIELD, Described("vectors"), "none where there are images, videos or sounds")


def _tokenize(tokenizer: Any) -> Tokenize | None:
    if tokenizer is None:
        return None

    def tokenize(text: str) -> list[int]:
        ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False)
        return list(ids)

    return tokenize


def model(manager: Any) -> Model:
    """What injection has to know about the model that a ``TokenizerManager`` serves."""
    flags, hidden = config.flags, hidden_size(manager)
    folder = flags.injection_projections
    projections = Projections.load(folder, hidden) if folder else Projections(hidden)
    return Model(
        enabled=config.active.inject,
        dtype=dtype(manager),
        context_length=context_length(manager),
        projections=projections,
        max_magnitude=flags.injection_max_magnitude,
        max_bytes=flags.injection_max_megabytes * 2**20,
    )
