"""``POST /v1/toploc/verify``: are these the fingerprints of these tokens? One prefill for each claim.

Claims of exact mode are generated again instead: decoding and prefill do not give the same bits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import orjson

from tessera import admission, carry, config, telemetry
from tessera.capabilities.fingerprints import codec
from tessera.capabilities.fingerprints.answer import RESULT, UNVERIFIABLE
from tessera.capabilities.fingerprints.counters import CLAIMS
from tessera.capabilities.fingerprints.options import (
    FIELD,
    HASH_DIGITS,
    NAME,
    WITH_MESSAGES,
    WITHOUT_MESSAGES,
    FingerprintOptions,
    ToplocClaim,
    ToplocVerifyRequest,
    parse_claim,
)
from tessera.capabilities.fingerprints.sampling import Sampling, places
from tessera.capabilities.fingerprints.selection import row_mask, value_count
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.capabilities.inject.options import FIELD as OVERRIDES_FIELD
from tessera.capabilities.inject.pending import NAME as INJECT
from tessera.capabilities.row_hashes import chain
from tessera.carry import Live, SamplingParams
from tessera.errors import BadFingerprint, BadRequest, Described
from tessera.fields import read
from tessera.http.body import Streamed, read_object, token_ids
from tessera.limits import MAX_FINGERPRINTS, MAX_SAMPLED_TOKENS
from tessera.rows.chunks import count, layout


class Response(NamedTuple):
    """What is claimed in exact mode."""

    output_ids: list[int]
    row_hashes: list[str]

    def difference(self, meta: dict[str, Any]) -> str:
        """What of it did not come again; "" if nothing."""
        again = meta["output_ids"]
        if len(again) != len(self.output_ids):
            return f"output_ids: generated again, there are {len(again)} tokens"
        for i, (claimed, own) in enumerate(zip(self.output_ids, again, strict=True)):
            if claimed != own:
                return f"output_ids: generated again, token {i} is {own}"
        for i, (theirs, ours) in enumerate(zip(self.row_hashes, meta[chain.FIELD], strict=True)):
            if theirs.lower() != ours:
                return f"row_hashes: the rows differ in chunk {i}"
        return ""


class Chat(NamedTuple):
    """What the messages of a claim stand for.

    Attributes:
        tokens: prompt and response.
        answer_tokens: how many of them are the response.
    """

    tokens: list[int]
    answer_tokens: int


class Unverifiable(NamedTuple):
    """Why there is no result."""

    reason: str


class Claim(NamedTuple):
    """One response and its fingerprints, well-formed.

    Attributes:
        tokens: what to run: prompt and response, but for its last token; in exact mode the prompt.
        params: sampling parameters that carry the rest.
        values: how many values each fingerprint proves.
        prompt_tokens: N.
        live: what the main process keeps of it.
        sampling: how its prover says it drew, where that is to be judged.
        response: in exact mode, what must come again.
        lora_path: the adapter that the response was computed with, if any.
    """

    tokens: list[int]
    params: SamplingParams
    values: list[int]
    prompt_tokens: int
    live: Live
    sampling: Sampling | None = None
    response: Response | None = None
    lora_path: str | None = None

    @property
    def slow_tokens(self) -> int:
        """Tokens whose sampling is judged, or that are generated again."""
        judged = 0 if self.sampling is None else len(self.tokens) - self.prompt_tokens
        return judged if self.response is None else len(self.response.output_ids)


Run = Callable[[list[Claim]], Awaitable[list[dict[str, Any] | Unverifiable]]]
"""From claims to the ``meta_info`` of the answer to each, in their order."""
Tokenize = Callable[[str, ToplocClaim], Chat | Unverifiable]
"""From a claim with messages to its tokens, given its place in the request; raises `BadRequest`."""


async def verify(request: Streamed, run: Run, tokenize: Tokenize, hidden_size: int, vocabulary: int) -> dict[str, Any]:
    """Answer ``/v1/toploc/verify``.

    Args:
        request: its body is a `ToplocVerifyRequest`.
        run: runs them.
        tokenize: gives the tokens of those that have messages.
        hidden_size: H.
        vocabulary: how many token ids the model has.

    Raises:
        BadRequest: a field is wrong; its name says which.
    """
    given = read(await read_object(request, ToplocVerifyRequest.__struct_fields__), ToplocVerifyRequest)
    read_claims = [
        read_claim(f"claims[{i}]", own, hidden_size, vocabulary)
        if own.messages is None
        else read_chat(f"claims[{i}]", own, hidden_size, tokenize)
        for i, own in enumerate(given.claims)
    ]
    claims = [claim for claim in read_claims if isinstance(claim, Claim)]
    slow = sum(claim.slow_tokens for claim in claims)
    if slow > MAX_SAMPLED_TOKENS:
        raise BadRequest(
            "claims", Described(f"{slow} tokens with sampling"), f"at most {MAX_SAMPLED_TOKENS} in one request"
        )
    metas = await run(claims)
    limits = config.thresholds.for_values(config.flags.toploc_verification_topk)
    verified = [_result(claim, meta, limits) for claim, meta in zip(claims, metas, strict=True)]
    if any(claim.sampling is not None for claim in claims):  # seconds, for long responses: not on the event loop
        await asyncio.to_thread(_judge_sampling, claims, metas, verified)
    left = iter(verified)
    results = [_without_result(one, limits) if isinstance(one, Unverifiable) else next(left) for one in read_claims]
    for result in results:
        telemetry.count(CLAIMS, value=result["verdict"])
    return {"results": results}


def read_claim(name: str, given: ToplocClaim, hidden_size: int, vocabulary: int) -> Claim:
    """Check the lists of a claim, and what its fields say together.

    Args:
        name: its place in the request, for the message.
        given: what came.
        hidden_size: H.
        vocabulary: how many token ids the model has.

    Raises:
        BadRequest: a field is wrong; its name says which.
    """
    for field in WITH_MESSAGES[1:]:
        if getattr(given, field) is not None:
            raise BadRequest(f"{name}.{field}", getattr(given, field), "only with messages")
    prompt = token_ids(f"{name}.input_ids", given.input_ids, vocabulary)
    output = token_ids(f"{name}.output_ids", given.output_ids, vocabulary, least=0)
    generated = output[:-1]
    adapter = given.lora_path or None
    if given.row_hashes is not None:
        hashes = _row_hashes(f"{name}.row_hashes", given, count(len(generated)))
        exactly = {FIELD: False, "return_row_hashes": True, "return_output_ids": True}
        again = _regeneration(f"{name}.sampling", given.sampling, len(output))
        params, live = _admitted(name, given, exactly, again)
        return Claim(prompt, params, [], len(prompt), live, response=Response(output, hashes), lora_path=adapter)
    topk = config.flags.toploc_verification_topk
    values = expected_values(len(prompt), len(generated), given.nonce, hidden_size, topk)
    fingerprints = _checked(f"{name}.fingerprints", given.fingerprints, values)
    params, live = _with_claim(name, given, fingerprints, len(generated))
    return Claim(prompt + generated, params, values, len(prompt), live, given.sampling, lora_path=adapter)


def read_chat(name: str, given: ToplocClaim, hidden_size: int, tokenize: Tokenize) -> Claim | Unverifiable:
    """Check a claim that has messages.

    Args:
        name: its place in the request, for the message.
        given: what came.
        hidden_size: H.
        tokenize: gives its tokens.

    Raises:
        BadRequest: a field is wrong; its name says which.
    """
    for field in WITHOUT_MESSAGES:
        if getattr(given, field) is not None:
            raise BadRequest(f"{name}.{field}", getattr(given, field), "none beside messages")
    if not isinstance(given.fingerprints, list):
        raise BadFingerprint(f"{name}.fingerprints", given.fingerprints, "a list: of the prompt, then 32 tokens each")
    topk = config.flags.toploc_verification_topk
    parsed = parse_claim(f"{name}.fingerprints", given.fingerprints, topk, MAX_FINGERPRINTS)
    chat = tokenize(name, given)
    if isinstance(chat, Unverifiable):
        return chat
    tail = chat.answer_tokens
    prompt = len(chat.tokens) - tail
    values = [len(one.coefficients) for one in parsed]
    # A text does not say whether its last token was fed back: `FingerprintOptions.either_end`.
    possible = [expected_values(prompt, rows, given.nonce, hidden_size, topk) for rows in {tail, max(tail - 1, 0)}]
    if values not in possible:
        return Unverifiable(
            f"the last message has {tail} tokens, whose fingerprints are others in number or length; "
            "give input_ids and output_ids"
        )
    params, live = _with_claim(name, given, tuple(given.fingerprints), tail, either_end=True)
    return Claim(chat.tokens, params, values, prompt, live, lora_path=given.lora_path or None)


def _with_claim(
    name: str, given: ToplocClaim, claim: tuple[str, ...], tail: int, *, either_end: bool = False
) -> tuple[SamplingParams, Live]:
    """What carries a claim that is checked: to admit each of a thousand fields again takes half of a verification."""
    params: SamplingParams = {"max_new_tokens": 0}
    live = Live()
    if given.input_embed_overrides is not None:
        params, live = _admitted(name, given, {}, params)
    options = FingerprintOptions(given.nonce, config.flags.toploc_verification_topk, claim, tail, either_end)
    wire = msgspec.json.encode(options).decode()
    return carry.put(params, live, {NAME: wire}, **{carry.TAIL: tail}), live


def _admitted(
    name: str, given: ToplocClaim, fields: dict[str, Any], params: SamplingParams
) -> tuple[SamplingParams, Live]:
    """With the vectors that the response was computed with: of this one prompt, for many claims are one request."""
    fields = {**fields, OVERRIDES_FIELD: given.input_embed_overrides}
    params, live = admission.admit(fields, params, admission.server(), where=f"{name}.")
    if pending := live.state.get(INJECT):
        pending.merge()
    return params, live


def _regeneration(name: str, sampling: Sampling | None, tokens: int) -> SamplingParams:
    """Sampling parameters that generate the same response again."""
    if sampling is None or (sampling.temperature > 0 and sampling.seed is None):
        sampled = msgspec.to_builtins(sampling)
        raise BadRequest(name, sampled, "beside row_hashes temperature 0 or a seed: the response is generated again")
    params = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    seed = {} if sampling.temperature == 0 else {"sampling_seed": sampling.seed}
    return {**params, **seed, "max_new_tokens": tokens, "ignore_eos": True}


def _row_hashes(name: str, given: ToplocClaim, wanted: int) -> list[str]:
    hashes = given.row_hashes
    if given.fingerprints is not None or given.nonce is not None:
        raise BadRequest(name, hashes, "either row_hashes, or fingerprints and nonce")
    good = isinstance(hashes, list) and len(hashes) == wanted
    if not good or not all(isinstance(one, str) and len(one) == HASH_DIGITS for one in hashes):
        raise BadRequest(name, hashes, f"a list of {wanted} texts of {HASH_DIGITS} hexadecimal digits")
    return list(hashes)


def expected_values(prompt: int, generated_rows: int, nonce: str | None, hidden_size: int, topk: int) -> list[int]:
    """How many values each fingerprint of such a response proves."""
    spans = enumerate(layout(prompt, prompt + generated_rows))
    return [value_count(row_mask(nonce, i, end - start), end - start, hidden_size, topk) for i, (start, end) in spans]


def _checked(name: str, fingerprints: Any, values: list[int]) -> tuple[str, ...]:
    if not isinstance(fingerprints, list) or len(fingerprints) != len(values):
        found = f"{len(fingerprints)} fingerprints" if isinstance(fingerprints, list) else fingerprints
        raise BadFingerprint(name, found, f"a list of {len(values)} for this response: prompt, then 32 tokens each")
    for i, (own, wanted) in enumerate(zip(codec.parse_all(name, fingerprints, max(values)), values, strict=True)):
        if len(own.coefficients) != wanted:
            raise BadFingerprint(f"{name}[{i}]", Described(f"{len(own.coefficients)} values"), f"{wanted} values")
    return tuple(fingerprints)


def _result(claim: Claim, meta: dict[str, Any] | Unverifiable, limits: dict[str, float]) -> dict[str, Any]:
    if isinstance(meta, Unverifiable):
        return _without_result(meta, limits)
    found = [] if claim.response is not None else [Distance(**one) for one in orjson.loads(meta[RESULT])]
    reason = config.thresholds.why_failed(found, claim.values)
    if claim.response is not None:
        reason = claim.response.difference(meta)
    verdict = "fail" if reason else "pass"
    statistics = [one._asdict() for one in found]
    return {"verdict": verdict, "reason": reason, "statistics": statistics, "thresholds": limits}


def _without_result(why: Unverifiable, limits: dict[str, float]) -> dict[str, Any]:
    return {"verdict": UNVERIFIABLE, "reason": why.reason, "statistics": [], "thresholds": limits}


def _judge_sampling(claims: list[Claim], metas: list[dict[str, Any] | Unverifiable], results: list[Any]) -> None:
    for claim, meta, result in zip(claims, metas, results, strict=True):
        if claim.sampling is not None and not isinstance(meta, Unverifiable):
            result["sampling"] = claim.sampling.statistics(places(meta, claim.prompt_tokens))._asdict()
