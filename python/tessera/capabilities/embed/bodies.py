"""The bodies of ``/v1/embeddings`` and ``/encode``: the declarations that check them, and that the OpenAPI shows."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.capabilities.embed.options import ENCODING, NORMALIZE, POOLING, Dimensions, Encoding, Pooling, Spans
from tessera.http.adapters import Adapter

_DEFAULT = "null: the server default"
_Text = Annotated[str, Meta(min_length=1, extra={"allowed": "a text that is not empty"})]


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a chat."""

    role: Annotated[_Text, Meta(description="who says it")]
    content: Annotated[_Text, Meta(description="what is said")]


class _Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that the bodies of both routes have."""

    encoding_format: Annotated[Encoding | None, ENCODING] = None
    dimensions: Dimensions = None
    pooling: Annotated[Pooling | None, Meta(description=f"{POOLING.description}; {_DEFAULT}")] = None
    normalize: Annotated[bool | None, Meta(description=f"{NORMALIZE.description}; {_DEFAULT}")] = None
    spans: Spans = None
    truncate_prompt_tokens: Annotated[
        Literal[-1] | Annotated[int, Meta(ge=1)] | None,
        Meta(description="how many tokens at the end of each prompt count; -1: as many as the context has"),
    ] = None
    on_error: Annotated[
        Literal["null"] | None, Meta(description="a prompt that fails is null, and the others are answered")
    ] = None
    lora_path: Adapter = None


class EmbeddingsRequest(_Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts, token ids or a chat, and how to embed them: OpenAI's fields and our own."""

    input: Annotated[Any, Meta(description="what to embed: texts, or token ids")] = None
    messages: Annotated[
        Annotated[tuple[ChatMessage, ...], Meta(min_length=1)] | None,
        Meta(description="a chat in place of input, written by the model's chat template"),
    ] = None
    add_generation_prompt: Annotated[bool | None, Meta(description="whether the template begins the answer")] = None
    model: Annotated[
        Any,
        Meta(description="name:adapter names an adapter (LoRA) that is loaded; any other name is not looked at"),
    ] = None
    user: Annotated[Any, Meta(description="taken and not looked at")] = None


class EncodeRequest(_Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text or several, and how to embed them."""

    text: Annotated[Any, Meta(description="what to embed")]
    hidden_size: Annotated[Any, Meta(description="checked against the model's")] = None
