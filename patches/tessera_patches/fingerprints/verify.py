"""``/v1/toploc/verify``: each claim is a request of the engine: they are batched, and one that fails fails alone."""

import asyncio
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from sglang.srt.managers import io_struct
from sglang.srt.utils.json_response import orjson_response

from tessera import config
from tessera.capabilities.fingerprints import claims
from tessera.capabilities.fingerprints.claims import Claim, Run, Unverifiable
from tessera.capabilities.fingerprints.sampling import CANDIDATES
from tessera.errors import BadRequest, RequestFailed
from tessera.http import adapters
from tessera.rows.reads import ROWS_UNAVAILABLE
from tessera.telemetry import timed
from tessera_patches.core import calls
from tessera_patches.engine.model import hidden_size, vocabulary
from tessera_patches.fingerprints.claimed_chats import tokens_of


def add_routes(app: FastAPI, manager: Any) -> None:
    """Add ``/v1/toploc/verify``, on a server that keeps rows."""

    async def verify(request: Request) -> Response:
        run = _without_unrunnable(_run(manager, request), manager)
        with timed("/v1/toploc/verify"):
            tokenize = partial(tokens_of, serving=request.app.state.openai_serving_chat)
            answer = await claims.verify(request, run, tokenize, hidden_size(manager), vocabulary(manager))
        response: Response = orjson_response(answer)
        return response

    calls.count(add_routes)
    app.add_api_route("/v1/toploc/verify", verify, methods=["POST"], include_in_schema=False)


def _run(manager: Any, request: Request) -> Run:
    async def answers(found: list[Claim]) -> list[dict[str, Any]]:
        answered: list[dict[str, Any]] = await anext(manager.generate_request(_as_request(found), request))
        return answered

    async def one(claim: Claim) -> dict[str, Any] | Unverifiable:
        try:
            return _meta(*await answers([claim]))
        except (ValueError, RequestFailed) as error:
            return Unverifiable(str(error))

    async def together(found: list[Claim]) -> list[dict[str, Any] | Unverifiable]:
        """Send all claims in one message: sent singly, the first ones alone would begin the first prefill."""
        try:
            return [_meta(answer) for answer in await answers(found)]
        except (ValueError, RequestFailed) as error:  # of one of them; the engine does not say of which
            if await request.is_disconnected():  # or of all: nobody waits for a second try
                return [Unverifiable(str(error)) for _ in found]
            return await asyncio.gather(*map(one, found))

    return together


def _without_unrunnable(run: Run, manager: Any) -> Run:
    """The engine does not see a claim that it cannot run: for one of them it would refuse them all."""

    async def runnable(found: list[Claim]) -> list[dict[str, Any] | Unverifiable]:
        reasons = [_refusal_reason(claim, manager) for claim in found]
        sent = [claim for claim, reason in zip(found, reasons, strict=True) if not reason]
        answered = iter(await run(sent) if sent else [])
        return [Unverifiable(reason) if reason else next(answered) for reason in reasons]

    return runnable


def _refusal_reason(claim: Claim, manager: Any) -> str:
    """Why the engine cannot run this claim; "" where it can."""
    try:
        adapters.check_loaded(adapters.FIELD, claim.lora_path, manager.lora_ref_cache)
    except BadRequest as error:
        return str(error)
    if config.room is None:
        return ""
    if claim.response is not None:
        return config.room.regeneration_refusal(len(claim.tokens), len(claim.response.output_ids))
    return config.room.refusal(len(claim.tokens))


def _as_request(found: list[Claim]) -> Any:
    """One request with a prompt for each claim, and log-probabilities of the answer where sampling is judged.

    They begin at the prompt's last token, which has none; each claimed token has one.
    """
    judged = [claim.sampling is not None for claim in found]
    paths = [claim.lora_path for claim in found]
    return io_struct.GenerateReqInput(
        input_ids=[claim.tokens for claim in found],
        sampling_params=[claim.params for claim in found],
        return_logprob=judged,
        logprob_start_len=[claim.prompt_tokens - 1 if own else -1 for claim, own in zip(found, judged, strict=True)],
        top_logprobs_num=[CANDIDATES if own else 0 for own in judged],
        lora_path=paths if any(paths) else None,  # a server without adapters refuses any list
    )


def _meta(answer: dict[str, Any]) -> dict[str, Any] | Unverifiable:
    meta: dict[str, Any] = answer["meta_info"]
    if ROWS_UNAVAILABLE in meta:
        return Unverifiable(meta[ROWS_UNAVAILABLE])
    aborted = meta["finish_reason"]["type"] == "abort"  # what it has is not all of what is claimed
    return Unverifiable("the request was aborted; send it again") if aborted else meta
