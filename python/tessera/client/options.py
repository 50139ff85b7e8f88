"""What calls take, declared once for every client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from tessera.client.injection import Injection

Prompt = str | Sequence[int]
"""A text, or its token ids."""
Messages = Sequence[Mapping[str, Any]]
"""A chat, as OpenAI has it: each message has ``role`` and ``content``."""


class SamplingOptions(TypedDict, total=False):
    """SGLang's sampling parameters, with SGLang's defaults: temperature 1 and 128 tokens."""

    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    regex: str
    json_schema: str
    ebnf: str
    ignore_eos: bool
    skip_special_tokens: bool


class PoolingOptions(TypedDict, total=False):
    """How a vector is made of the rows of a prompt (docs/guide/embeddings.md)."""

    pooling: Literal["mean", "last", "max", "first"]
    normalize: bool
    dimensions: int


class EncodeOptions(PoolingOptions, total=False):
    """Options of ``encode`` and ``encode_batch``; ``lora_path`` names an adapter that the server has loaded."""

    lora_path: str


class GenerateOptions(SamplingOptions, total=False):
    """Options of ``generate`` and ``stream``.

    ``logprobs`` asks for the log-probability of each generated token, ``hidden_states`` for raw rows
    (docs/guide/hidden-states.md), ``fingerprints`` for what ``verify`` needs, with the verifier's ``nonce`` if it gave
    one. ``inject`` puts vectors into the embeddings of the prompt, ``lora_path`` names an adapter that the server has
    loaded. ``timeout`` is in seconds, for this call.
    """

    logprobs: bool
    hidden_states: bool | Literal["last"] | dict[str, Any]
    fingerprints: bool
    nonce: str
    inject: Injection | Sequence[Injection]
    lora_path: str
    timeout: float


class EmbeddingOptions(PoolingOptions, total=False):
    """Options of an embedding of a generation; ``over`` says which rows are pooled."""

    over: Literal["prompt", "output", "all"]


class GenerateWithEmbeddingOptions(GenerateOptions, EmbeddingOptions, total=False):
    """Options of ``generate_with_embedding``: those of ``generate``, and which rows become a vector and how."""


class ChatOptions(GenerateOptions, total=False):
    """Options of ``chat``; ``embedding`` asks for the embedding of the same tokens."""

    embedding: bool | EmbeddingOptions


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Each holds for a whole call, its tries and the pauses between them included.

    Attributes:
        connect: to make one connection.
        request: one prompt.
        batch: many prompts: candidates of a batch, one chunk of ``encode_batch``, ``verify``.
    """

    connect: float = 5.0
    request: float = 120.0
    batch: float = 300.0


def check_known(method: str, options: Mapping[str, Any], allowed: type) -> None:
    """Raise `TypeError` for an option that the method does not have: SGLang answers 500 to it, or looks away."""
    for name in options:
        if name not in allowed.__annotations__:
            known = ", ".join(allowed.__annotations__)
            raise TypeError(f"{method}() got an unexpected option {name!r}; it takes {known}")
