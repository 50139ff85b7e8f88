"""What a capability is: everything that the system has to know of one thing that requests can ask for.

`tessera.capabilities.registry` lists them. What adds a server's routes and the client name some, too. A request
passes these methods in their order:

| where | method |
|---|---|
| HTTP edge | `extend`: prompts with the answers that they verify; `admit`: check the fields, give options |
| HTTP edge, prompts known | `prepare`: change what SGLang is asked for |
| before it is queued | `size`: the most bytes that it adds to the answer |
| scheduler, request finished or far enough | `reads`: what to read of the row store |
| main process, values arrive | `arrived`: begin what takes long |
| main process, answer leaves | `respond`, or `without` where there are no rows |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect as kinds

from tessera.carry import Live
from tessera.errors import BadRequest
from tessera.fields import read
from tessera.flags import Flags
from tessera.metrics import Counter
from tessera.refusal import Refusal
from tessera.rows.reads import Over, Read, Value

F = TypeVar("F", bound=msgspec.Struct)
"""The fields of a request."""
O = TypeVar("O")  # noqa: E741 - options
"""The options that go to the scheduler."""

NEEDS_ROWS = "only on a server started with --enable-return-hidden-states"
NEEDS_ROWS_OR_FINGERPRINTS = f"{NEEDS_ROWS} or --toploc-verification"
"""The second option turns the first one on."""


class Place(Enum):
    """Where a field of an answer goes on OpenAI's routes. In ``/generate`` it is in ``meta_info``."""

    CHOICE = "choice"
    MESSAGE = "message"
    """On the message of a chat, or its delta; on the choice of a completion."""
    LAST_CHUNK = "last chunk"
    """As `CHOICE`; in a stream in the delta of a chunk of its own, after the choice's last one."""


@dataclass(frozen=True, slots=True)
class Server:
    """What of the server decides what a request may ask for.

    Attributes:
        rows: whether it keeps rows.
        flags: our options.
        hidden_size: H of the model; None until it is known.
        deterministic: whether its arithmetic is the same bit by bit.
    """

    rows: bool
    flags: Flags = field(default_factory=Flags)
    hidden_size: int | None = None
    deterministic: bool = False


@dataclass(slots=True)
class IncomingRequest:
    """A request at the HTTP edge.

    Attributes:
        params: sampling parameters: of all its prompts together, or of each.
        listed: whether they came as a list.
        server: what it is asked of.
        live: what the main process keeps of it.
        tail: as `tessera.carry.Carried.tail`; for a request that verifies. None where no one knows: it is not run.
        either_end: whether its prover may have fed back one token less.
        where: what stands before the names of its fields in messages.
        fields: all fields of the request, as they came.
    """

    params: list[dict[str, Any]]
    listed: bool
    server: Server
    live: Live
    tail: int | None = 0
    either_end: bool = False
    where: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


class Progress(NamedTuple):
    """How far a request is whose rows may be read: it finished, or got far enough for another read.

    Attributes:
        prompt_tokens: N.
        output_tokens: M, through the stop; 0 where nothing was generated.
        running: whether it goes on.
        done: how many reads of the capability were made before, while it ran.
        hidden_size: H.
    """

    prompt_tokens: int
    output_tokens: int
    running: bool = False
    done: int = 0
    hidden_size: int = 0

    @property
    def rows(self) -> int:
        """N+M-1: the last generated token was never fed back, so it has no row."""
        return self.prompt_tokens + max(self.output_tokens - 1, 0)

    def span(self, over: Over) -> tuple[int, int]:
        """First position of these tokens, and the one after the last."""
        if over is Over.PROMPT:
            return 0, self.prompt_tokens
        return (self.prompt_tokens, self.rows) if over is Over.OUTPUT else (0, self.rows)


class Shape(NamedTuple):
    """What of the model decides how many bytes an answer has.

    Attributes:
        hidden_size: H.
        value_bytes: of one value of a row, in the model's dtype.
        context: the most tokens of prompt and response.
    """

    hidden_size: int
    value_bytes: int
    context: int


class Answer(NamedTuple):
    """An answer that leaves, or a chunk of a stream.

    Attributes:
        meta: SGLang's ``meta_info``.
        params: sampling parameters of the request.
        prompt_ids: the prompt's token ids, where SGLang was asked for them.
        output_ids: all generated token ids, where they are collected.
    """

    meta: Mapping[str, Any]
    params: Mapping[str, Any]
    prompt_ids: Sequence[int] | None = None
    output_ids: Sequence[int] = ()


class Capability(Generic[F, O]):
    """One thing that requests can ask for. Subclasses say what is special about it.

    Attributes:
        name: of its folder.
        fields: the request's fields. ``extra={"generate": True}`` of one keeps it off OpenAI's routes,
            ``extra={"stock": True}`` says that SGLang has it too.
        bodies: the bodies of its own routes, and what of them has a name of its own in the OpenAPI.
        listed: those fields that may be a list, with one value for each prompt.
        options: what of them goes to the scheduler, as text.
        answers: the fields of the answer, and where they go on OpenAI's routes.
        pieces: those of `answers` that come in pieces while a stream runs: lists that are joined.
        needs: what to start a server with that can answer; "" where any can.
        bulky: whether its answers are large, and wait for room.
        without_tokens: those fields that ask for something of a request that generates nothing.
        collects: whether it wants all generated token ids.
        hooked: whether the scheduler has hooks for it, which read its text themselves.
        counters: what it counts, for ``/metrics``.
        work: what it times in the main process.
        switch: our option that turns it on; "" where rows are enough.
        refusals: SGLang's options that it cannot be combined with, where it has a switch.
        beside_state: the same where a model has Mamba or linear-attention state.
        environment: the same of SGLang's variables, which are set if they are not 0.
    """

    name: ClassVar[str]
    fields: ClassVar[type[msgspec.Struct]]
    bodies: ClassVar[tuple[type[msgspec.Struct], ...]] = ()
    listed: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[type[Any]]
    answers: ClassVar[Mapping[str, Place]] = {}
    pieces: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[str] = NEEDS_ROWS
    bulky: ClassVar[bool] = False
    without_tokens: ClassVar[tuple[str, ...]] = ()
    collects: ClassVar[bool] = False
    hooked: ClassVar[bool] = False
    counters: ClassVar[tuple[Counter, ...]] = ()
    work: ClassVar[tuple[str, ...]] = ()
    switch: ClassVar[str] = ""
    refusals: ClassVar[tuple[Refusal, ...]] = ()
    beside_state: ClassVar[tuple[Refusal, ...]] = ()
    environment: ClassVar[tuple[Refusal, ...]] = ()

    def field_names(self) -> tuple[str, ...]:
        """As clients write them, in the order of `fields`."""
        return self.fields.__struct_fields__

    def always(self, server: Server) -> bool:
        """Whether every request of this server uses it that does not say otherwise."""
        return False

    def refused(self, flags: Flags, *, rows: bool) -> list[str]:
        """One sentence for each of its own options that cannot be; ``rows``: whether the server keeps rows."""
        return []

    def declared(self) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        """Name, default and ``extra`` of each of its fields."""
        for own in msgspec.structs.fields(self.fields):
            extra = getattr(kinds.type_info(own.type), "extra", None)
            yield own.name, own.default, extra or {}

    def to_wire(self, options: O) -> str:
        """The options as text."""
        return msgspec.json.encode(options).decode()

    def from_wire(self, wire: str) -> O:
        """Inverse of `to_wire`, of a text that our own main process wrote."""
        found: O = msgspec.json.decode(wire, type=self.options)
        return found

    def options_of(self, request: IncomingRequest) -> Sequence[O | None]:
        """Check its fields of a request.

        Returns:
            Options: for all prompts together, or one for each; None where one does not use it.

        Raises:
            BadRequest: a value is not allowed, or not on this server.
        """
        given = (request.fields.get(name) for name in self.field_names())
        if all(
            value is None or value is default
            for value, default in zip(given, self.fields.__struct_defaults__, strict=True)
        ) and not self.always(request.server):
            return []
        fields: F = read(request.fields, self.fields, request.where)  # type: ignore[assignment]
        if self.needs and not request.server.rows:
            self.refuse(request.fields)
            return []
        return self.admit(fields, request)

    def refuse(self, given: Mapping[str, Any]) -> None:
        """Refuse its fields on a server that cannot answer them.

        Raises:
            BadRequest: one asks for something.
        """
        for name in self.field_names():
            value = given.get(name)
            if value is not None and value is not False:
                raise BadRequest(name, value, self.needs)

    def admit(self, fields: F, request: IncomingRequest) -> Sequence[O | None]:
        """`options_of`, with fields whose values are each allowed."""
        raise NotImplementedError

    def check_body(self, body: Mapping[str, Any]) -> None:
        """Refuse what OpenAI's request models would drop, of a body as it came.

        Raises:
            BadRequest: a field is for ``/generate`` alone.
        """

    def verifies(self, given: Mapping[str, Any]) -> bool:
        """Whether a request with these fields verifies an answer that was generated elsewhere."""
        return False

    def extend(self, field: str, prompt: Any, given: Mapping[str, Any]) -> tuple[Any, int]:
        """The prompt followed by such an answer, but for its last token, which was never fed back.

        Args:
            field: the prompt's name in the request.
            prompt: as it came: a text, token ids, or several.
            given: the request's fields.

        Returns:
            The prompt, and how many tokens were added.

        Raises:
            BadRequest: there is an answer that cannot follow this prompt.
        """
        return prompt, 0

    def verified(self, options: O) -> int | None:
        """How many of the prompt's last tokens are an answer that it verifies; None where it verifies none."""
        return None

    def prepare(self, request: Any, params: Any) -> Any:
        """Change SGLang's request (``GenerateReqInput``), now that its prompts are known.

        Args:
            request: SGLang's.
            params: its sampling parameters: one object, one for each prompt, or none.

        Returns:
            The sampling parameters.
        """
        return params

    def awaits(self, options: O) -> bool:
        """Whether the answer has something that only the scheduler can read."""
        return True

    def reads(self, options: O, progress: Progress) -> Sequence[Read]:
        """What to read for a request that finished; for one that runs, what is complete and was not read before.

        Pure: nothing but the arguments counts.

        Raises:
            RequestFailed: there is no such thing in this request.
        """
        return ()

    def next_read(self, options: O, done: int) -> int | None:
        """How many tokens a running request must have generated for one more read.

        None where everything is read when it ends.

        Args:
            options: of the request.
            done: how many reads were made while it ran.
        """
        return None

    def complete(self, output_tokens: int) -> int:
        """How many reads are complete while a request runs that has generated so many tokens."""
        return 0

    def arrived(self, options: O, values: Sequence[Value]) -> Sequence[Any]:
        """Begin what takes long, when values arrive in the main process; what `respond` gets in their place."""
        return values

    async def respond(self, options: O, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """The fields of an answer.

        Args:
            options: of the request.
            values: what was read for it, as `arrived` gave it, that no chunk of the stream had before.
            answer: what they are put into.

        Raises:
            TesseraError: there is none.
        """
        raise NotImplementedError

    async def chunk(self, options: O, values: Sequence[Any]) -> dict[str, Any]:
        """The fields of a chunk of a stream that completes these reads."""
        return {}

    def without(self, options: O, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """The fields where there are no rows to vouch for: null. ``values`` are those that need no rows."""
        return {}

    def size(self, options: O, shape: Shape, prompt_tokens: int, new_tokens: int) -> int:
        """The most bytes that it adds to the answer to one sample."""
        return 0

    def grows(self, options: O) -> bool:
        """Whether `size` depends on how many tokens the prompt has."""
        return False

    def sent(self, options: O) -> dict[str, Any]:
        """The request's fields as the client sent them, for SGLang's logs, records and dumps."""
        raise NotImplementedError

    def complete_schema(
        self, schemas: dict[str, Any], hidden_size: int | None, vocabulary: int | None, *, adapters: bool
    ) -> None:
        """Complete the OpenAPI components of its fields, in place: a model's limits, and what its routes need.

        Args:
            schemas: by name, those of `fields` among them, which begin with "Tessera", and those of `bodies`.
            hidden_size: H; None leaves out what depends on it.
            vocabulary: how many token ids there are; likewise.
            adapters: whether the server may have some loaded.
        """

    def paths(self) -> dict[str, Any]:
        """The OpenAPI of its own routes."""
        return {}
