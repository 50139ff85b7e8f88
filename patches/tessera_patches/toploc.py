"""``/v1/toploc/verify``: each claim is one request of the engine, so that they are batched and fail one by one."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from sglang.srt.managers import io_struct
from sglang.srt.utils.json_response import orjson_response

from tessera.errors import RequestFailed
from tessera.fingerprint import exact
from tessera.fingerprint.answer import RESULT
from tessera.fingerprint.sampling import CANDIDATES
from tessera.http import claims
from tessera.http.claims import Claim, Run, Unverifiable


def add_routes(app: FastAPI, manager: Any) -> None:
    """On a server that keeps rows."""
    shape = manager.model_config

    async def verify(request: Request) -> Response:
        answer = await claims.verify(request, _run(manager, request), shape.hidden_size, shape.vocab_size)
        response: Response = orjson_response(answer)
        return response

    app.add_api_route("/v1/toploc/verify", verify, methods=["POST"], include_in_schema=False)


def _logprobs(claim: Claim) -> dict[str, Any]:
    """From the prompt's last token on: of it there is none, of each claimed one there is."""
    return {"return_logprob": True, "logprob_start_len": claim.prompt_tokens - 1, "top_logprobs_num": CANDIDATES}


def _run(manager: Any, request: Request) -> Run:
    async def one(claim: Claim) -> dict[str, Any] | Unverifiable:
        logprobs = {} if claim.sampling is None else _logprobs(claim)
        obj = io_struct.GenerateReqInput(input_ids=claim.tokens, sampling_params=claim.params, **logprobs)
        try:
            answer = await anext(manager.generate_request(obj, request))
        except (ValueError, RequestFailed) as error:
            return Unverifiable(str(error))
        meta: dict[str, Any] = answer["meta_info"]
        found = RESULT in meta or exact.FIELD in meta
        return meta if found else Unverifiable("the request was aborted; send it again")

    async def all_at_once(found: list[Claim]) -> list[dict[str, Any] | Unverifiable]:
        return await asyncio.gather(*map(one, found))

    return all_at_once
