"""``return_toploc_fingerprints``, and their verification."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.capabilities.fingerprints import flags as own_flags
from tessera.capabilities.fingerprints import schema
from tessera.capabilities.fingerprints.answer import FINGERPRINTS, RESULT, collect_fingerprints, validate_claim
from tessera.capabilities.fingerprints.answered import append_output
from tessera.capabilities.fingerprints.builder import shared_builder
from tessera.capabilities.fingerprints.counters import BUILD, CLAIMS, COMPARE, FINGERPRINTS_BUILT, FINGERPRINTS_COMPARED
from tessera.capabilities.fingerprints.options import (
    CLAIM_FIELD,
    FIELD,
    NAME,
    NONCE_FIELD,
    OUTPUT_FIELD,
    FingerprintFields,
    FingerprintOptions,
    ToplocClaim,
    ToplocVerifyRequest,
    parse_claim,
)
from tessera.capabilities.fingerprints.selection import row_mask, value_count
from tessera.capability import (
    NEEDS_ROWS_OR_FINGERPRINTS,
    Answer,
    Capability,
    IncomingRequest,
    Place,
    Progress,
    Server,
    Shape,
)
from tessera.errors import BadFingerprint, BadRequest, Described
from tessera.flags import Flags
from tessera.limits import MAX_FINGERPRINTS, MAX_PLACES
from tessera.rows.chunks import CHUNK_ROWS, complete, count
from tessera.rows.reads import Read, Top, Value
from tessera.schema_parts import operation

_VALUE_BYTES = 8
"""One value of a fingerprint: its place and bits, in base64."""


class Fingerprints(Capability[FingerprintFields, FingerprintOptions]):
    """See `tessera.capability.Capability`."""

    name = NAME
    fields = FingerprintFields
    bodies = (ToplocVerifyRequest, ToplocClaim)
    options = FingerprintOptions
    without_tokens = (CLAIM_FIELD,)
    answers = dict.fromkeys((FINGERPRINTS, RESULT, NONCE_FIELD), Place.MESSAGE)
    pieces = frozenset({FINGERPRINTS})
    needs = NEEDS_ROWS_OR_FINGERPRINTS
    counters = (FINGERPRINTS_BUILT, FINGERPRINTS_COMPARED, CLAIMS)
    work = (BUILD, COMPARE)

    def refused(self, flags: Flags, *, rows: bool) -> list[str]:
        """Its own options, on a server without rows."""
        return own_flags.refused(flags, rows=rows)

    def always(self, server: Server) -> bool:
        """Every request is fingerprinted with ``--toploc-verification``."""
        return server.flags.toploc_verification

    def admit(self, fields: FingerprintFields, request: IncomingRequest) -> Sequence[FingerprintOptions | None]:
        """A claim, or what the request or the server wants."""
        options = FingerprintOptions(fields.toploc_nonce, request.server.flags.toploc_verification_topk)
        if fields.toploc_verification_fingerprint_to_validate is not None:
            return [_claim(fields.toploc_verification_fingerprint_to_validate, request, options)]
        wanted = fields.return_toploc_fingerprints
        return [options] if (self.always(request.server) if wanted is None else wanted) else []

    def verifies(self, given: Mapping[str, Any]) -> bool:
        """Those with a claim, even one that `admit` refuses."""
        return given.get(CLAIM_FIELD) is not None

    def extend(self, field: str, prompt: Any, given: Mapping[str, Any]) -> tuple[Any, int]:
        """A prompt of token ids, followed by ``output_ids``."""
        return append_output(field, prompt, given.get(OUTPUT_FIELD), given.get(CLAIM_FIELD))

    def verified(self, options: FingerprintOptions) -> int | None:
        """The length of the answer in a claim."""
        return None if options.claim is None else options.tail

    def reads(self, options: FingerprintOptions, progress: Progress) -> Sequence[Read]:
        """The prompt, then chunks of generated rows."""
        layouts = options.layouts(progress.prompt_tokens, progress.rows)
        upto = complete(progress.output_tokens) if progress.running else len(layouts)
        found = []
        for index, start, end in layouts[progress.done : upto]:
            rows = end - start
            if rows * progress.hidden_size > MAX_PLACES:
                raise ValueError(f"a fingerprint of {rows} rows is not possible")
            mask = row_mask(options.nonce, index, rows)
            found.append(Top(start, end, mask, value_count(mask, rows, progress.hidden_size, options.topk)))
        return found

    def next_read(self, options: FingerprintOptions, done: int) -> int | None:
        """A fingerprint needs the token after its last row."""
        return CHUNK_ROWS * done + 1 if options.claim is None else None

    def complete(self, output_tokens: int) -> int:
        """The last token generated has no row yet."""
        return complete(output_tokens)

    def arrived(self, options: FingerprintOptions, values: Sequence[Value]) -> Sequence[Any]:
        """Have a thread build them while the request goes on. Awaiting the result gives the fingerprints."""
        return [shared_builder().build(values)] if values and options.claim is None else values  # type: ignore[arg-type]

    async def respond(self, options: FingerprintOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """The fingerprints that no chunk had before, or the verdict."""
        if options.claim is not None:
            return {RESULT: await validate_claim(options.claim, values, options)}
        nonce = {} if options.nonce is None else {NONCE_FIELD: options.nonce}
        return {FINGERPRINTS: await collect_fingerprints(values)} | nonce

    async def chunk(self, options: FingerprintOptions, values: Sequence[Any]) -> dict[str, Any]:
        """The fingerprints of the rows that this chunk of a stream completes."""
        return {FINGERPRINTS: await collect_fingerprints(values)} if values else {}

    def without(self, options: FingerprintOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """Null, for fingerprints or for the result of a claim."""
        return {FINGERPRINTS if options.claim is None else RESULT: None}

    def size(self, options: FingerprintOptions, shape: Shape, prompt_tokens: int, new_tokens: int) -> int:
        """All of a response that ends at its limit."""
        return (1 + count(new_tokens)) * options.topk * _VALUE_BYTES

    def sent(self, options: FingerprintOptions) -> dict[str, Any]:
        """The claim, or that there are to be some."""
        claim = options.claim if isinstance(options.claim, str) else list(options.claim or ())
        fields = {FIELD: True} if options.claim is None else {CLAIM_FIELD: claim}
        return fields | {NONCE_FIELD: options.nonce}

    def complete_schema(
        self, schemas: dict[str, Any], hidden_size: int | None, vocabulary: int | None, *, adapters: bool
    ) -> None:
        """What the types of its route's body do not say."""
        schema.complete(schemas[ToplocClaim.__name__], vocabulary)

    def paths(self) -> dict[str, Any]:
        request = operation(
            "verifyFingerprints",
            "fingerprints",
            "Verify fingerprints",
            "ToplocVerifyRequest",
            schema.answer(),
            binary=False,
        )
        return {"/v1/toploc/verify": {"post": request}}


def _claim(value: object, request: IncomingRequest, options: FingerprintOptions) -> FingerprintOptions:
    if request.listed:
        raise BadRequest(CLAIM_FIELD, value, "one prompt; POST /v1/toploc/verify takes many claims")
    params = request.params[0]
    if params.get("max_new_tokens") != 0 or params.get("n", 1) != 1:
        raise BadRequest(
            CLAIM_FIELD, Described("a request that generates"), "max_new_tokens 0 and n 1: a prefill verifies"
        )
    parse_claim(CLAIM_FIELD, value, options.topk, MAX_FINGERPRINTS)
    if request.tail is not None:
        check_count(CLAIM_FIELD, value, request.tail, either_end=request.either_end)
    claim: Any = tuple(value) if isinstance(value, list) else value  # texts, or they would not have been parsed
    return FingerprintOptions(options.nonce, options.topk, claim, request.tail or 0, request.either_end)


def check_count(name: str, claim: object, tail: int, *, either_end: bool = False) -> None:
    """A list holds every fingerprint of the response; a string is its last one.

    Args:
        name: of the field.
        claim: its value.
        tail: how many of the prompt's last tokens the prover generated and fed back.
        either_end: whether it may have fed back one less.

    Raises:
        BadFingerprint: it has more, or fewer.
    """
    allowed = sorted({count(tail), count(max(tail - either_end, 0))})
    if isinstance(claim, list) and len(claim) not in allowed:
        many = " or ".join(map(str, allowed))
        raise BadFingerprint(
            name, Described(f"{len(claim)} fingerprints"), f"{many} for this response; or its last one alone"
        )
