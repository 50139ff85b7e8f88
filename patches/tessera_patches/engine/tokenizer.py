"""SGLang's ``TokenizerManager`` in the main process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import TemplateError
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from tessera.capabilities.embed.inputs import Tokenizer

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import ReqState
    from transformers import PreTrainedTokenizerBase

if hasattr(TokenizerManager, "_raise_if_logical_request_aborted"):  # up to 0.5.17

    def raise_if_aborted(manager: TokenizerManager, obj: GenerateReqInput) -> None:
        """Raise a ``ValueError`` if a request was aborted before it went to a scheduler."""
        manager._raise_if_logical_request_aborted(obj)

else:

    def raise_if_aborted(manager: TokenizerManager, obj: GenerateReqInput) -> None:
        """Raise a ``ValueError`` if a request was aborted before it went to a scheduler."""
        for rid in [obj.rid] if obj.is_single else obj.rid:
            states: dict[str, ReqState] = manager.rid_to_state
            if rid not in states or _aborted(states[rid]):
                raise ValueError(f"Request {rid} was aborted")

    def _aborted(state: ReqState) -> bool:
        aborted: bool = state.abort_sent
        return aborted


def longest_prompt(manager: TokenizerManager) -> int:
    """To how many tokens SGLang truncates a prompt, or else refuses one; known once every scheduler is ready."""
    tokens: int = manager.max_req_input_len
    return tokens


def reserved_tokens(manager: TokenizerManager) -> int:
    """Tokens of a context that SGLang keeps for drafts, and counts as the prompt's."""
    tokens: int = manager.num_reserved_tokens
    return tokens


def tokenizer_of(manager: TokenizerManager) -> Tokenizer | None:
    """What makes token ids of texts and of chats as the engine does; None on a server without a tokenizer."""
    own: PreTrainedTokenizerBase | None = manager.tokenizer
    if own is None:
        return None

    def encode(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = own(texts)["input_ids"]
        return found

    def render(messages: list[dict[str, str]], generation_prompt: bool) -> list[int]:
        try:
            ids: list[int] = own.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=generation_prompt, return_dict=False
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error
        return ids

    return Tokenizer(encode, render)
