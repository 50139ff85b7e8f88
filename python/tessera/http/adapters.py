"""Which adapter (LoRA) a request names: as SGLang's routes take it, and 400 where the answer would be another's."""

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

from tessera.errors import BadRequest

FIELD = "lora_path"
MODEL = "model"

MEANING = "name of an adapter (LoRA) that the server has loaded"

Adapter = Annotated[str | None, Meta(description=MEANING, extra={"allowed": "the name of a loaded adapter"})]
"""None is the model without any, and so is an empty text on SGLang's routes."""


def parse_name(field: str, value: object) -> str | None:
    """One adapter's name; None is the model without any, and so is an empty text on SGLang's routes.

    Raises:
        BadRequest: it is no text.
    """
    if value is None or isinstance(value, str):
        return value or None
    raise BadRequest(field, value, "the name of a loaded adapter")


def check_loaded(field: str, name: str | None, loaded: Collection[str]) -> str | None:
    """An adapter's name, if the server has loaded it.

    Raises:
        BadRequest: it has not.
    """
    if name is None or name in loaded:
        return name
    raise BadRequest(field, name, " | ".join(loaded) if loaded else "none: this server has loaded no adapter")


def of_openai(model: object, path: object, served: str, loaded: Collection[str]) -> str | None:
    """The adapter in OpenAI's ``model``, written ``name:adapter``; else that in ``lora_path``.

    A name that is itself an adapter's is refused: SGLang's routes answer it with the model without the adapter.

    Args:
        model: as it came; what is no text names nothing.
        path: ``lora_path``, as it came.
        served: the model's name, which may have a colon itself.
        loaded: names of the adapters that the server has loaded.

    Raises:
        BadRequest: no such adapter is loaded.
    """
    own = check_loaded(FIELD, parse_name(FIELD, path), loaded)
    if not isinstance(model, str) or model == served:
        return own
    if model in loaded:
        raise BadRequest(MODEL, model, f"{served}:{model} for this adapter")
    return check_loaded(MODEL, model.partition(":")[2].strip() or None, loaded) or own


def check_batch(value: object, prompts: int | None) -> None:
    """Refuse ``lora_path`` of a wrong shape: SGLang ends at a list beside one prompt, and at a shorter one.

    Args:
        value: as it came.
        prompts: how many there are; None for one that is not in a list.

    Raises:
        BadRequest: it is neither one name nor a list of one for each prompt.
    """
    if not isinstance(value, list):
        parse_name(FIELD, value)
        return
    if prompts is None or len(value) != prompts:
        given = "there is one prompt" if prompts is None else f"there are {prompts} prompts"
        raise BadRequest(FIELD, value, f"one name, or a list of one for each prompt; {given}")
    for i, name in enumerate(value):
        if name == "":  # SGLang looks for an adapter of that name
            raise BadRequest(f"{FIELD}[{i}]", name, "the name of a loaded adapter")
        parse_name(f"{FIELD}[{i}]", name)
