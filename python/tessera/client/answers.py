"""From answers to results. Nothing partial becomes a result."""

import base64
import binascii
import json
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import numpy as np

from tessera.client import errors
from tessera.client.applied import APPLIED, check_generation, check_pooling, missing
from tessera.client.results import Embedding, Embeddings, Floats, Generation, ServerInfo, Verdict
from tessera.client.status import NO_ROWS, Answer, check_status, is_ours, parse_json, shown, status_error
from tessera.rows.reads import ROWS_UNAVAILABLE

_ROWS = frozenset({"embedding", "hidden_states", "fingerprints"})
"""Fields of `Generation` that the server makes of rows."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def generations(answer: Answer, count: int, wanted: frozenset[str]) -> list[Generation]:
    """The generations of a batch.

    Args:
        answer: to ``/generate`` with a list of prompts.
        count: how many must be there.
        wanted: fields of `Generation` that were asked for.

    Raises:
        ClientError: an error status, another number, or one that is not whole.
    """
    items = parse_json(answer)
    if not isinstance(items, list) or len(items) != count:
        found = len(items) if isinstance(items, list) else type(items).__name__
        raise errors.InvalidResponse(f"{count} generations were asked for and {found} came; none of them is returned")
    return [generation(item, wanted) for item in items]


def generation(item: Any, wanted: frozenset[str], sent: Mapping[str, Any] = _NOTHING) -> Generation:
    """One generation, whole or not at all.

    Args:
        item: of the answer.
        wanted: fields of `Generation` that were asked for.
        sent: the request's body, compared with what the answer says was applied.

    Raises:
        ServerError: it was aborted, or the weights changed and its rows are none.
        HiddenStatesUnsupported: rows were asked for and did not come.
        NotApplied: something that was asked for was not done.
        InvalidResponse: a field is missing or has another form.
    """
    try:
        meta = item["meta_info"]
        reason = meta["finish_reason"]
        if reason["type"] == "abort":
            raise _aborted(reason)
        if ROWS_UNAVAILABLE in meta and wanted & _ROWS:
            raise _without_rows(meta[ROWS_UNAVAILABLE])
        found = Generation(
            text=str(item["text"]),
            output_ids=tuple(item["output_ids"]),
            finish_reason=str(reason["type"]),
            prompt_tokens=int(meta["prompt_tokens"]),
            cached_tokens=int(meta["cached_tokens"]),
            token_logprobs=_logprobs(meta, len(item["output_ids"])) if "token_logprobs" in wanted else None,
            embedding=_embedding(meta) if "embedding" in wanted else None,
            hidden_states=_hidden_states(meta) if "hidden_states" in wanted else None,
            fingerprints=_fingerprints(meta) if "fingerprints" in wanted else None,
            input_ids=tuple(meta["input_ids"]) if "fingerprints" in wanted else None,
            meta=meta,
        )
        check_generation(sent, meta)
    except (KeyError, TypeError, ValueError) as error:
        raise errors.InvalidResponse(f"this is no whole generation ({error!r}): {shown(item)}") from error
    return found


def chat(answer: Answer, wanted: frozenset[str], sent: Mapping[str, Any]) -> Generation:
    """The generation of a chat, whole or not at all.

    Args:
        answer: to ``/v1/chat/completions``.
        wanted: fields of `Generation` that were asked for.
        sent: the request's body.

    Raises:
        ClientError: as `generation`.
    """
    body = parse_json(answer)
    try:
        (choice,) = body["choices"]
        message, usage = choice["message"], body["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        meta = {**choice, **message, "prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached}
        meta["finish_reason"] = {"type": choice["finish_reason"]}
        logprobs = (choice.get("logprobs") or {}).get("content") or ()
        meta["output_token_logprobs"] = [(entry["logprob"],) for entry in logprobs]
        ids = choice["response_token_ids"] if "response_token_ids" in choice else choice["token_ids"]
        item = {"text": message["content"] or "", "output_ids": ids, "meta_info": meta}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.InvalidResponse(f"this is no answer to a chat ({error!r}): {shown(body)}") from error
    return generation(item, wanted, sent)


def embeddings(answer: Answer, count: int, requested: Mapping[str, Any] = _NOTHING) -> Embeddings:
    """The matrix of an answer: binary, or JSON where a proxy did not pass on that binary was asked for.

    Args:
        answer: to ``/v1/embeddings``.
        count: how many vectors must be there.
        requested: the options that were sent, compared with those that the answer says were applied.

    Raises:
        ClientError: an error status, another number of rows, fewer bytes than the headers say, other options.
    """
    if answer.status == HTTPStatus.NOT_FOUND or (answer.status == HTTPStatus.BAD_REQUEST and not is_ours(answer)):
        message = f"{NO_ROWS}, and no proxy in front of it that lacks the route"
        raise errors.HiddenStatesUnsupported(message, status=answer.status)
    check_status(answer)
    if "x-tessera-shape" not in answer.headers:
        return _from_json(answer, count, requested)
    try:
        rows, width = map(int, answer.headers["x-tessera-shape"].split(","))
        tokens = int(answer.headers["x-tessera-prompt-tokens"])
        options = json.loads(answer.headers.get("x-tessera-embedding-options", "null"))
    except (KeyError, ValueError) as error:
        raise errors.InvalidResponse(f"the headers describe no matrix ({error!r})") from error
    if rows != count or len(answer.content) != 4 * rows * width:
        raise errors.InvalidResponse(
            f"{count} embeddings were asked for; {rows} of {width} values came in {len(answer.content)} bytes; none of "
            "them is returned"
        )
    check_pooling(requested, {APPLIED: options})
    return Embeddings(np.frombuffer(answer.content, "<f4").reshape(rows, width), tokens)


def _from_json(answer: Answer, count: int, requested: Mapping[str, Any]) -> Embeddings:
    body = parse_json(answer)
    try:
        items = sorted(body["data"], key=lambda item: int(item["index"]))
        matrix = np.stack([np.frombuffer(_bytes(item["embedding"]), "<f4") for item in items if item[APPLIED]])
        tokens = int(body["usage"]["prompt_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise errors.InvalidResponse(
            f"these are no embeddings of a server with sglang-tessera ({error!r}): {shown(answer.content)}"
        ) from error
    if len(matrix) != count:
        raise errors.InvalidResponse(f"{count} embeddings were asked for and {len(matrix)} came; none is returned")
    check_pooling(requested, items[0])
    return Embeddings(matrix, tokens)


def verdicts(answer: Answer, count: int) -> list[Verdict]:
    """The verdicts of ``/v1/toploc/verify``, one for each claim.

    Raises:
        ClientError: an error status, another number, an unknown verdict.
    """
    body = parse_json(answer)
    results = body.get("results") if isinstance(body, dict) else None
    if not isinstance(results, list) or len(results) != count:
        raise errors.InvalidResponse(f"{count} verdicts were asked for; the answer is {shown(body)}")
    known = {"pass", "fail", "unverifiable"}
    if not all(isinstance(result, dict) and result.get("verdict") in known for result in results):
        raise errors.InvalidResponse(f"a verdict is none of {', '.join(sorted(known))}: {shown(results)}")
    return [Verdict(result["verdict"], str(result.get("reason", "")), result) for result in results]


def server_info(answer: Answer) -> ServerInfo:
    """The `ServerInfo` in an answer of ``/server_info``.

    Raises:
        ClientError: an error status, or not SGLang's answer.
    """
    body = parse_json(answer)
    try:
        ours = body.get("tessera") or {}
        engine = ours.get("engine") or f"sglang {body['version']}"
        return ServerInfo(str(body["model_path"]), engine, ours.get("version"), tuple(ours.get("on", ())), body)
    except (AttributeError, KeyError, TypeError) as error:
        raise errors.InvalidResponse(f"this is no SGLang server: /server_info is {shown(body)}") from error


def _aborted(reason: Mapping[str, Any]) -> errors.StatusError:
    status = reason.get("status_code") or HTTPStatus.SERVICE_UNAVAILABLE
    message = f"the request was aborted: {reason.get('message') or 'no reason given'}"
    return status_error(int(status), {"message": message, "code": reason.get("err_type") or "request_aborted"})


def _without_rows(why: str) -> errors.StatusError:
    return status_error(HTTPStatus.SERVICE_UNAVAILABLE, {"message": why, "code": why.split(":", maxsplit=1)[0]})


def _logprobs(meta: Mapping[str, Any], tokens: int) -> Floats:
    values = np.array([entry[0] for entry in meta["output_token_logprobs"]], np.float32)
    if len(values) != tokens or np.isnan(values).any():
        raise ValueError(f"{len(values)} log-probabilities for {tokens} tokens, or some that are no numbers")
    return values


def _embedding(meta: Mapping[str, Any]) -> Embedding | None:
    if "embedding" not in meta:
        raise missing("embedding")
    if meta["embedding"] is None:
        return None
    return Embedding(np.frombuffer(_bytes(meta["embedding"]), "<f4"), int(meta["embedding_tokens"]))


def _hidden_states(meta: Mapping[str, Any]) -> Floats:
    states = meta.get("hidden_states")
    if not isinstance(states, dict):  # a stock server knows no format: it sends part of the rows as numbers, or none
        raise missing("hidden states in the form that was asked for")
    content = _bytes(states["data"])
    if states["dtype"] == "bfloat16":  # the upper half of a float32
        rows = (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    else:
        rows = np.frombuffer(content, {"float16": "<f2", "float32": "<f4"}[states["dtype"]]).astype(np.float32)
    return rows.reshape(states["shape"])


def _fingerprints(meta: Mapping[str, Any]) -> tuple[str, ...]:
    if "toploc_verification_fingerprints" not in meta:
        raise missing("fingerprints")
    return tuple(map(str, meta["toploc_verification_fingerprints"]))


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from error
