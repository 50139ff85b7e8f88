"""Answers: embeddings, raw states, fingerprints and token ids in the ``meta_info`` of answers. Main process."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Any

from tessera import config
from tessera.admission import Asked, asked
from tessera.delivery.mail import Mail
from tessera.delivery.outcome import Delivered
from tessera.embed.answer import answer as embedding
from tessera.errors import REQUEST_ABORTED, RowsUnavailable, TesseraError
from tessera.fingerprint import answer as fingerprints
from tessera.fingerprint import exact
from tessera.fingerprint.chunks import complete
from tessera.fingerprint.options import NONCE_FIELD
from tessera.inject.carry import INJECTED, Overrides, carried
from tessera.rows.span import UNAVAILABLE
from tessera.states.answer import answer as hidden_states
from tessera.states.answer import listed

Outputs = AsyncIterator[dict[str, Any]]


def with_rows(original: Callable[..., Outputs], manager: Any, obj: Any, request: Any = None) -> Outputs:
    """AROUND ``TokenizerManager._wait_one_response``. Requests that did not ask get the original generator."""
    wanted = asked(getattr(obj, "sampling_params", None))
    if config.inbox is not None:
        config.inbox.open()
    overrides = carried(getattr(obj, "sampling_params", None))
    if isinstance(overrides, Overrides):
        original = _counting(original, overrides)
    if not (wanted.rows or wanted.ids) or config.inbox is None:
        return original(manager, obj, request)
    inbox, key = config.inbox, wanted.token + obj.rid
    if wanted.proven:
        inbox.expect(key, fingerprints.begun)
    else:
        inbox.expect(key)
    outputs = original(manager, obj, request)
    outputs = _with_rows(outputs, wanted, Mail(inbox, key), stream=obj.stream, least=_least(obj.sampling_params))
    # Not in a finally of the generator: one that SGLang never starts would never run it.
    weakref.finalize(outputs, inbox.forget, key)
    return outputs if request is not None else _as_lists(outputs)


async def _as_lists(outputs: Outputs) -> Outputs:
    """For a caller in this process, as SGLang has them; over HTTP, numbers stay arrays until they are JSON."""
    async for output in outputs:
        meta = output["meta_info"]
        meta.update((name, listed(meta[name])) for name in ("embedding", "hidden_states") if name in meta)
        yield output


def _counting(original: Callable[..., Outputs], overrides: Overrides) -> Callable[..., Outputs]:
    """The last output says how many vectors were injected: what a proxy dropped is missing there."""

    async def counted(*args: Any) -> Outputs:
        async for output in original(*args):
            if output["meta_info"].get("finish_reason") is not None:
                output["meta_info"][INJECTED] = overrides.injected
            yield output

    return counted


def _least(sampling_params: dict[str, Any]) -> int:
    """The fewest tokens of an answer: before several samples SGLang asks for none, to fill its cache."""
    return int(sampling_params.get("n", 1) > 1 and sampling_params.get("max_new_tokens") != 0)


async def _with_rows(outputs: Outputs, wanted: Asked, mail: Mail, *, stream: bool, least: int) -> Outputs:
    output_ids: list[int] = []
    async for stock in outputs:
        # SGLang's own goes to its exporter, logs and dumps, some of them later: what is ours is in the answer alone.
        output = {**stock, "meta_info": dict(stock["meta_info"])}
        meta = output["meta_info"]
        reason = meta.get("finish_reason")
        try:
            meta.update(await _found(meta, wanted, mail, least))
        except TesseraError as error:
            if not stream:
                raise
            meta["finish_reason"] = _abort(error)
        if wanted.ids:
            output_ids = _all_ids(output_ids, output)
        if reason is not None:
            meta.update(_ids(wanted, output, output_ids))
        yield output


async def _found(meta: dict[str, Any], wanted: Asked, mail: Mail, least: int) -> dict[str, Any]:
    """What belongs to an answer, or to a chunk of a stream, of what the scheduler read."""
    reason = meta.get("finish_reason")
    try:
        if reason is None:
            return await _completed(meta, wanted, mail)
        if not wanted.rows or meta["completion_tokens"] < least or _is_refused(reason):
            return {}
        return await _fields(await _rest(meta, mail), wanted, meta["prompt_tokens"])
    except RowsUnavailable as error:
        return {} if reason is None else _without(wanted, error)


async def _completed(meta: dict[str, Any], wanted: Asked, mail: Mail) -> dict[str, Any]:
    """The fingerprints that a chunk of a stream completes."""
    parts = await mail.early(complete(meta["completion_tokens"])) if wanted.proven else []
    return {fingerprints.FINGERPRINTS: await fingerprints.built(parts)} if parts else {}


def _is_refused(reason: dict[str, Any]) -> bool:
    """Whether the answer is an error of SGLang's. Aborted on demand, a request keeps the tokens that it has."""
    return reason.get("type") == "abort" and reason.get("status_code") is not None


async def _rest(meta: dict[str, Any], mail: Mail) -> list[Delivered]:
    """What the scheduler read when the request ended.

    Raises:
        RowsUnavailable: it was aborted while it waited, new or retracted; SGLang counts no prompt tokens then.
        RequestFailed: it could not be read.
    """
    if "prompt_tokens" not in meta:
        raise RowsUnavailable(REQUEST_ABORTED, "the request was aborted while it waited, and had no rows")
    return await mail.rest()


def _without(wanted: Asked, error: RowsUnavailable) -> dict[str, Any]:
    """The answer's fields where there are no rows to vouch for: null, and why."""
    if config.metrics is not None:
        config.metrics.unavailable(error.code)
    fields: dict[str, Any] = {UNAVAILABLE: str(error)} | ({"input_ids": error.input_ids} if wanted.read else {})
    if wanted.embed is not None:
        fields |= {"embedding": None, "embedding_tokens": 0}
    if wanted.states is not None:
        fields[exact.FIELD if wanted.hashes else "hidden_states"] = None
    if wanted.fingerprints is not None:
        fields[fingerprints.FINGERPRINTS if wanted.proven else fingerprints.RESULT] = None
    return fields


async def _fields(parts: Sequence[Delivered], wanted: Asked, prompt_tokens: int) -> dict[str, Any]:
    delivered = parts[-1]
    outcome, dtype = delivered.outcome, delivered.dtype
    fields: dict[str, Any] = {"input_ids": outcome.input_ids} if wanted.read else {}
    if wanted.embed is not None and outcome.embedding_tokens is not None:
        fields |= embedding(delivered.vector, outcome.embedding_tokens, wanted.embed)
        if config.metrics is not None:
            config.metrics.embedded(outcome.embedding_tokens)
    if wanted.states is not None and delivered.rows is not None and outcome.states_shape is not None:
        rows, shape = delivered.rows, outcome.states_shape
        if wanted.hashes:
            fields[exact.FIELD] = await asyncio.to_thread(exact.row_hashes, rows, dtype, shape, prompt_tokens)
        else:
            fields["hidden_states"] = hidden_states(rows, dtype, shape, wanted.states, prompt_tokens)
        if config.metrics is not None:
            config.metrics.returned(shape[0])
    if wanted.proven:
        fields |= await _proofs(parts, wanted)
    if wanted.fingerprints is not None and wanted.claim is not None:
        points = [chunk for part in parts for chunk in part.points]
        result = await fingerprints.validated(wanted.claim, points, wanted.fingerprints)
        fields[fingerprints.RESULT] = result
    return fields


async def _proofs(parts: Sequence[Delivered], wanted: Asked) -> dict[str, Any]:
    nonce = None if wanted.fingerprints is None else wanted.fingerprints.nonce
    fields = {fingerprints.FINGERPRINTS: await fingerprints.built(parts)}
    return fields if nonce is None else {**fields, NONCE_FIELD: nonce}


def _all_ids(so_far: list[int], output: dict[str, Any]) -> list[int]:
    """All generated ids: SGLang's chunks hold all, or with --incremental-streaming-output the new ones."""
    ids: list[int] = output.get("output_ids") or []
    return ids if len(ids) == output["meta_info"].get("completion_tokens") else [*so_far, *ids]


def _ids(wanted: Asked, output: dict[str, Any], output_ids: list[int]) -> dict[str, Any]:
    """What the model read, and what it wrote. The scheduler may have cut a prompt (--allow-auto-truncate)."""
    prompt, tokens = output.get("prompt_token_ids"), output["meta_info"].get("prompt_tokens")
    values = {"input": prompt and prompt[:tokens], "output": list(output_ids)}
    return {f"{kind}_ids": values[kind] for kind in wanted.ids if not (wanted.read and kind == "input")}


def _abort(error: TesseraError) -> dict[str, Any]:
    """The status of a stream is sent already: there a failure ends it as SGLang's own aborts do."""
    if config.metrics is not None:
        config.metrics.failed(error.code)
    return {"type": "abort", "message": str(error), "status_code": HTTPStatus(error.status), "err_type": error.code}
