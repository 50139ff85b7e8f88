"""How long a prompt may be: claims are run whole or not at all, and a refusal says which prompt, and its own length."""

from collections.abc import Callable
from typing import Any

from tessera import carry, config
from tessera_patches.engine.tokenizer import reserved_tokens


class PromptRefused(ValueError):
    """A prompt that SGLang refuses, as a rule because of its length: a 400, as any ``ValueError``.

    Attributes:
        prompt: the text or token ids, the same object that the request has.
    """

    def __init__(self, message: str, prompt: Any) -> None:
        super().__init__(message)
        self.prompt = prompt


def check_claim(original: Callable[..., None], manager: Any, obj: Any, input_ids: list[int]) -> None:
    """AROUND ``TokenizerManager._validate_one_request``. Main process.

    Raises:
        ValueError: a claim is longer than a response of this server can be; SGLang makes a 400 of it.
        PromptRefused: SGLang refuses the prompt.
    """
    if carry.take(obj.sampling_params).tail is None or config.room is None:
        count = len(input_ids or ())
        try:
            original(manager, obj, input_ids)
        except ValueError as error:
            message = _with_own_length(str(error), count, reserved_tokens(manager))
            raise PromptRefused(message, obj.text if obj.input_ids is None else obj.input_ids) from error
        return
    reason = config.room.refusal(len(input_ids))
    if reason:
        raise ValueError(reason)
    original(manager, obj, input_ids[:1])  # its other checks; this one token is never too long


def _with_own_length(message: str, count: int, reserved: int) -> str:
    """SGLang counts what it reserves for drafts among the tokens of the prompt."""
    if not reserved:
        return message
    own = f"{count} tokens and {reserved} reserved for drafts"
    shown = message.replace(f"({count + reserved} tokens)", f"({own})")
    return shown.replace(f"{count + reserved} tokens from the input", f"{own} from the input")
