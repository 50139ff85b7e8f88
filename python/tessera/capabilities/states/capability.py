"""``return_hidden_states``: raw rows."""

from collections.abc import Sequence
from typing import Any

from tessera import config
from tessera.capabilities.states.answer import answer as answered
from tessera.capabilities.states.options import FIELD, FORMAT_FIELD, Format, StateFields, StateOptions, options_of
from tessera.capability import Answer, Capability, IncomingRequest, Place, Progress, Shape
from tessera.errors import NO_SUCH_POSITION, RequestFailed
from tessera.limits import LISTED_VALUE_BYTES
from tessera.metrics import Counter
from tessera.rows.reads import Over, RawRows, Read, Rows
from tessera.telemetry import count, timed

ANSWER = "hidden_states"
ANSWERS = Counter("hidden_states_total", "Answers with raw hidden states.")
ROWS = Counter("hidden_state_rows_total", "Raw rows answered.")
ENCODE = "encode_states"


class States(Capability[StateFields, StateOptions]):
    """See `tessera.capability.Capability`. Without rows, the field is SGLang's own."""

    name = "states"
    fields = StateFields
    listed = (FIELD,)
    options = StateOptions
    without_tokens = (FIELD,)
    answers = {ANSWER: Place.LAST_CHUNK}  # noqa: RUF012 - declared so in the base
    bulky = True
    counters = (ANSWERS, ROWS)
    work = (ENCODE,)

    def refuse(self, given: Any) -> None:
        """SGLang answers, or refuses, its own field."""

    def admit(self, fields: StateFields, request: IncomingRequest) -> Sequence[StateOptions | None]:
        """For all prompts, or one for each."""
        value, form = fields.return_hidden_states, fields.hidden_states_format or Format.LIST
        each = [options_of(own, form) for own in (value if isinstance(value, tuple) else (value,))]
        return [] if each == [None] else each

    def prepare(self, request: Any, params: Any) -> Any:
        """Turn SGLang's own field off where rows are kept: they have the states."""
        if config.active.rows:
            request.return_hidden_states = False
        return params

    def reads(self, options: StateOptions, progress: Progress) -> Sequence[Read]:
        """One span of rows, or the rows at given positions."""
        if progress.running:
            return ()
        start, end = progress.span(options.over)
        last = max(options.positions or (-1,))
        if last >= end:
            raise RequestFailed(NO_SUCH_POSITION, f"position {last} is not among the {end} rows of this request")
        return (Rows(end - 1 if options.last else start, end, options.positions),)

    async def respond(self, options: StateOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """The rows, in the format that was asked for."""
        rows: RawRows = values[0]
        count(ANSWERS)
        count(ROWS, rows.shape[0])
        with timed(ENCODE):
            return {ANSWER: answered(rows.rows, rows.dtype, rows.shape, options, answer.meta["prompt_tokens"])}

    def without(self, options: StateOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """Null: states are rows, and there are none."""
        return {ANSWER: None}

    def size(self, options: StateOptions, shape: Shape, prompt_tokens: int, new_tokens: int) -> int:
        """The bytes of its rows, as the format encodes them."""
        each = LISTED_VALUE_BYTES if options.format is Format.LIST else shape.value_bytes
        return _count(options, prompt_tokens, new_tokens) * shape.hidden_size * each

    def grows(self, options: StateOptions) -> bool:
        """Positions, and the last row, are as many whatever the prompt is."""
        return options.spans

    def sent(self, options: StateOptions) -> dict[str, Any]:
        """The value in its shortest form."""
        return {FIELD: _value(options), FORMAT_FIELD: options.format}

    def complete_schema(
        self, schemas: dict[str, Any], hidden_size: int | None, vocabulary: int | None, *, adapters: bool
    ) -> None:
        """A body has either ``positions`` or ``over``."""
        schemas["TesseraSelected"]["anyOf"] = [
            {"properties": {"positions": {"type": "null"}}},
            {"properties": {"over": {"const": Over.ALL.value}}},
        ]


def _count(options: StateOptions, prompt_tokens: int, new_tokens: int) -> int:
    if options.positions is not None:
        return len(options.positions)
    start, end = Progress(prompt_tokens, new_tokens).span(options.over)
    return 1 if options.last else end - start


def _value(options: StateOptions) -> Any:
    if options.last:
        return "last"
    if options.positions is not None:
        return {"positions": list(options.positions)}
    return True if options.over is Over.ALL else {"over": options.over}
