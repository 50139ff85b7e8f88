"""What a request may ask for about fingerprints."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tessera.capabilities.fingerprints import codec
from tessera.capabilities.fingerprints.codec import Fingerprint
from tessera.capabilities.fingerprints.sampling import Sampling
from tessera.capabilities.inject.options import FIELD as OVERRIDES_FIELD
from tessera.capabilities.inject.options import InjectFields
from tessera.errors import BadFingerprint, Described
from tessera.http.adapters import Adapter
from tessera.limits import MAX_CLAIMS, MAX_FINGERPRINTS, MAX_NONCE_CHARACTERS
from tessera.rows.chunks import layout
from tessera.schema_parts import Schema, or_null

NAME = "fingerprints"
"""Name of the capability."""
FIELD = "return_toploc_fingerprints"
CLAIM_FIELD = "toploc_verification_fingerprint_to_validate"
NONCE_FIELD = "toploc_nonce"
OUTPUT_FIELD = "output_ids"

Nonce = Annotated[str, Meta(min_length=1, max_length=MAX_NONCE_CHARACTERS)]

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_FINGERPRINTS}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_NULL = {"type": "null"}
_OBJECT = {"type": "object"}
HASH_DIGITS = 64
_HASH = {**_TEXT, "minLength": HASH_DIGITS, "maxLength": HASH_DIGITS}
_, _INJECT = msgspec.json.schema_components([InjectFields], ref_template="#/components/schemas/Tessera{name}")
_OVERRIDES: Schema = _INJECT["InjectFields"]["properties"][OVERRIDES_FIELD]
_FOLLOWS = f"only with {CLAIM_FIELD}; none for fingerprints of a prompt alone"


class FingerprintFields(msgspec.Struct, frozen=True):
    """The fields of a request. `parse_claim` checks fingerprints: its errors have a code of their own."""

    return_toploc_fingerprints: Annotated[
        bool | None, Meta(description="return TOPLOC fingerprints; by default only with --toploc-verification")
    ] = None
    toploc_verification_fingerprint_to_validate: Annotated[
        Any,
        Meta(
            description="compare with the hidden states of this prompt: the last fingerprint of a response, or all",
            extra_json_schema={"anyOf": [_TEXT, _TEXTS, _NULL]},
        ),
    ] = None
    toploc_nonce: Annotated[
        Nonce | None,
        Meta(description="the verifier's nonce, which selects the rows that are proven; by default all"),
    ] = None
    output_ids: Annotated[
        Any,
        Meta(description=f"what was generated for the prompt; {_FOLLOWS}", extra_json_schema={"anyOf": [_IDS, _NULL]}),
    ] = None


class ToplocClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One response to verify."""

    input_ids: Annotated[Any, Meta(description="token ids of the prompt", extra_json_schema=or_null(_IDS))] = None
    output_ids: Annotated[Any, Meta(description="token ids of the response", extra_json_schema=or_null(_IDS))] = None
    fingerprints: Annotated[
        Any, Meta(description="of prompt and response, in their order", extra_json_schema=or_null(_TEXTS))
    ] = None
    nonce: Annotated[
        Nonce | None, Meta(description="the verifier's, if the prover was given one; none beside row_hashes")
    ] = None
    sampling: Annotated[
        Sampling | None, Meta(description="how the prover says that it sampled: its tokens are judged too")
    ] = None
    row_hashes: Annotated[
        Any,
        Meta(
            description="of prompt and response, in place of fingerprints: the response is generated again; only with "
            "--enable-deterministic-inference, and sampling with temperature 0 or a seed",
            extra_json_schema=or_null({**_TEXTS, "items": _HASH}),
        ),
    ] = None
    lora_path: Adapter = None
    input_embed_overrides: Annotated[Any, Meta(extra_json_schema=_OVERRIDES)] = None
    messages: Annotated[
        Any,
        Meta(
            description="in place of input_ids and output_ids: a chat whose last message is the response",
            extra_json_schema=or_null({"type": "array", "items": _OBJECT, "minItems": 1}),
        ),
    ] = None
    tools: Annotated[
        Any,
        Meta(
            description="those that the chat was asked for with; only with messages",
            extra_json_schema=or_null({"type": "array", "items": _OBJECT}),
        ),
    ] = None
    chat_template_kwargs: Annotated[
        Any, Meta(description="arguments of the chat template; only with messages", extra_json_schema=or_null(_OBJECT))
    ] = None


WITH_MESSAGES = ("messages", "tools", "chat_template_kwargs")
"""Fields of a claim that is a chat."""
WITHOUT_MESSAGES = ("input_ids", "output_ids", "sampling", "row_hashes", "input_embed_overrides")
"""Fields of a claim that need its exact tokens."""


class ToplocVerifyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``/v1/toploc/verify``."""

    claims: Annotated[
        tuple[ToplocClaim, ...], Meta(min_length=1, max_length=MAX_CLAIMS, description="responses to verify")
    ]


class FingerprintOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of one request.

    Attributes:
        nonce: the verifier's, which selects the rows that are proven; None proves all.
        topk: how many values a fingerprint proves.
        claim: the fingerprints that are verified: the last of a response, or all; None where they are built.
        tail: of a claim: how many of the prompt's last tokens its prover generated and fed back.
        either_end: of a claim made of text: the prover may have fed back one token less, for a text does not say
            whether its last token ended the response or was followed by one that did.
    """

    nonce: str | None = None
    topk: int = 128
    claim: str | tuple[str, ...] | None = None
    tail: int = 0
    either_end: bool = False

    def layouts(self, prompt_tokens: int, rows: int) -> list[tuple[int, int, int]]:
        """Number, first row and the one after the last of each fingerprint: `tessera.rows.chunks`.

        With ``either_end`` the last one of the shorter response follows.
        """
        if self.claim is None:
            return _with_index(layout(prompt_tokens, rows))
        found = _with_index(layout(rows - self.tail, rows))
        if self.either_end and self.tail > 0:
            found.append(_with_index(layout(rows - self.tail, rows - 1))[-1])
        return found


def _with_index(chunks: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(number, start, end) for number, (start, end) in enumerate(chunks)]


def parse_claim(field: str, value: object, topk: int, most: int) -> list[Fingerprint]:
    """The fingerprints of a claim, one or a list of them, as a list.

    Args:
        field: its name.
        value: what came.
        topk: how many values one may prove.
        most: how many fingerprints there may be.

    Raises:
        BadFingerprint: none, too many, or one that is malformed.
    """
    found: list[Any] = value if isinstance(value, list) else [value]
    if not 1 <= len(found) <= most:
        raise BadFingerprint(field, Described(f"{len(found)} fingerprints"), f"1 to {most}")
    return codec.parse_all(field, found, topk) if isinstance(value, list) else [codec.parse(field, value, topk)]
