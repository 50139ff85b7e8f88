"""``return_row_hashes``: hashes of all rows of a response."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tessera import carry
from tessera.capabilities.row_hashes.chain import FIELD as ANSWER
from tessera.capabilities.row_hashes.chain import row_hashes
from tessera.capability import NEEDS_ROWS_OR_FINGERPRINTS, Answer, Capability, IncomingRequest, Place, Progress, Shape
from tessera.errors import BadRequest
from tessera.metrics import Counter
from tessera.prompts import private_cache_key
from tessera.rows.reads import RawRows, Read, Rows
from tessera.telemetry import count

FIELD = "return_row_hashes"
ANSWERS = Counter("row_hashes_total", "Answers with hashes of all rows.")
_NOT_BESIDE = "return_hidden_states"


class RowHashFields(msgspec.Struct, frozen=True):
    """How a request asks for hashes of its hidden states."""

    return_row_hashes: Annotated[
        bool | None,
        Meta(description="return hashes of all hidden states; needs --enable-deterministic-inference"),
    ] = None


class RowHashOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The capability has no options."""


class RowHashes(Capability[RowHashFields, RowHashOptions]):
    """See `tessera.capability.Capability`."""

    name = "row_hashes"
    fields = RowHashFields
    options = RowHashOptions
    answers = {ANSWER: Place.CHOICE}  # noqa: RUF012 - declared so in the base
    needs = NEEDS_ROWS_OR_FINGERPRINTS
    bulky = True
    counters = (ANSWERS,)

    def admit(self, fields: RowHashFields, request: IncomingRequest) -> Sequence[RowHashOptions | None]:
        """Refused unless the arithmetic is the same bit by bit."""
        if not fields.return_row_hashes:
            return []
        if not request.server.deterministic:
            raise BadRequest(FIELD, True, "only on a server started with --enable-deterministic-inference")
        if request.fields.get(_NOT_BESIDE) not in (None, False):
            raise BadRequest(FIELD, True, f"not together with {_NOT_BESIDE}")
        return [RowHashOptions()]

    def prepare(self, request: Any, params: Any) -> Any:
        """A part of the prefix cache for this request alone: what was decoded has other bits than what is prefilled."""
        if carry.uses(params, self.name):
            request.extra_key = private_cache_key(request.extra_key)
        return params

    def reads(self, options: RowHashOptions, progress: Progress) -> Sequence[Read]:
        """All rows of the request, once it has finished."""
        return () if progress.running else (Rows(0, progress.rows),)

    async def respond(self, options: RowHashOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """Hashed beside the event loop."""
        rows: RawRows = values[0]
        count(ANSWERS)
        found = await asyncio.to_thread(row_hashes, rows.rows, rows.dtype, rows.shape, answer.meta["prompt_tokens"])
        return {ANSWER: found}

    def without(self, options: RowHashOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """Null: there are no rows to hash."""
        return {ANSWER: None}

    def size(self, options: RowHashOptions, shape: Shape, prompt_tokens: int, new_tokens: int) -> int:
        """The rows are held until they are hashed."""
        return (prompt_tokens + max(new_tokens - 1, 0)) * shape.hidden_size * shape.value_bytes

    def grows(self, options: RowHashOptions) -> bool:
        """There is a hash for each chunk, the prompt's included."""
        return True

    def sent(self, options: RowHashOptions) -> dict[str, Any]:
        """The field has no options."""
        return {FIELD: True}
