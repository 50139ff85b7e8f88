"""What a request may ask for about fingerprints: parsed once, at the HTTP edge, by this one schema."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

from tessera.errors import BadFingerprint, BadRequest, Described
from tessera.fields import boolean, integer, json_object
from tessera.fingerprint import chunks, codec
from tessera.limits import MAX_NONCE_CHARACTERS

FIELD = "return_toploc_fingerprints"
CLAIM_FIELD = "toploc_verification_fingerprint_to_validate"
NONCE_FIELD = "toploc_nonce"
INPUT_IDS_FIELD = "return_input_ids"
OUTPUT_IDS_FIELD = "return_output_ids"
HASHES_FIELD = "return_row_hashes"


@dataclass(frozen=True, slots=True)
class FingerprintOptions:
    """The validated options of one request.

    Attributes:
        nonce: the verifier's, which selects the rows that are proven; None proves all.
        tail: of a claim that is verified: how many of the prompt's last tokens its prover generated and fed back.
            None where fingerprints are built.
        either_end: of a claim made of text: the prover may have fed back one token less, for a text does not say
            whether its last token ended the response or was followed by one that did.
    """

    nonce: str | None = None
    tail: int | None = None
    either_end: bool = False

    def to_wire(self) -> str:
        """One flat JSON string, as `tessera.embed.options.EmbedOptions.to_wire`."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    @lru_cache(maxsize=1024)
    def from_wire(cls, wire: str) -> Self:
        """Inverse of `to_wire`; remembered, for most requests ask for the same and the scheduler's thread reads it.

        Raises:
            BadRequest: not a string of ours.
        """
        value = json_object(wire) or {}
        try:
            tail = value["tail"] if value["tail"] is None else integer("tail", value["tail"], 0, None)
            return cls(nonce(value["nonce"]), tail, boolean("either_end", value["either_end"]))
        except (KeyError, BadRequest) as error:
            raise BadRequest("sampling_params.custom_params.tessera_toploc", wire, f"reserved; use {FIELD}") from error

    def layouts(self, prompt_tokens: int, rows: int) -> list[tuple[int, int, int]]:
        """Number, first row and the one after the last of each fingerprint, as `tessera.fingerprint.chunks.layout`.

        With ``either_end`` the last one of the shorter response follows.
        """
        if self.tail is None:
            return _numbered(chunks.layout(prompt_tokens, rows))
        found = _numbered(chunks.layout(rows - self.tail, rows))
        if self.either_end and self.tail > 0:
            found.append(_numbered(chunks.layout(rows - self.tail, rows - 1))[-1])
        return found


def _numbered(layout: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(number, start, end) for number, (start, end) in enumerate(layout)]


def wanted(value: object, *, default: bool) -> bool:
    """Read ``return_toploc_fingerprints``; None is what the server does by default.

    Raises:
        BadRequest: it is no boolean.
    """
    return default if value is None else boolean(FIELD, value)


def nonce(value: object, field: str = NONCE_FIELD) -> str | None:
    """Read a nonce.

    Raises:
        BadRequest: it is no text, empty or too long.
    """
    if value is None or (isinstance(value, str) and 1 <= len(value) <= MAX_NONCE_CHARACTERS):
        return value
    raise BadRequest(field, value, f"a text of 1 to {MAX_NONCE_CHARACTERS} characters")


def claimed(field: str, value: object, topk: int, most: int) -> list[str]:
    """The fingerprints of a claim, one or a list of them, as a list; each is well-formed.

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
    if isinstance(value, list):
        codec.parse_all(field, found, topk)
    else:
        codec.parse(field, value, topk)
    return found
