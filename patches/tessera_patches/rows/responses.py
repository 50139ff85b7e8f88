"""Answers: what capabilities add to the ``meta_info`` of answers. Main process."""

import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np

from tessera import carry, config
from tessera.capabilities import registry
from tessera.capabilities.registry import Requested
from tessera.capability import Answer
from tessera.delivery.inbox import OutcomeReader
from tessera.delivery.outcome import Values
from tessera.errors import REQUEST_ABORTED, RowsUnavailable, TesseraError
from tessera.http.error_body import note
from tessera.metrics import AWAIT_ROWS
from tessera.rows.reads import ROWS_UNAVAILABLE
from tessera.telemetry import timed

Outputs = AsyncIterator[dict[str, Any]]


def with_fields(original: Callable[..., Outputs], manager: Any, obj: Any, request: Any = None) -> Outputs:
    """AROUND ``TokenizerManager._wait_one_response``. Requests that did not ask get the original generator."""
    carried = carry.take(getattr(obj, "sampling_params", None))
    if config.inbox is not None:
        config.inbox.open()
    if not carried.wires:
        return original(manager, obj, request)
    requested = registry.carried_by(obj.sampling_params)
    outcomes = None
    if config.inbox is not None and registry.awaited(requested):
        key = carried.token + obj.rid
        config.inbox.expect(key, partial(_arrived, requested))
        outcomes = OutcomeReader(config.inbox, key)
    outputs = _with_fields(original(manager, obj, request), requested, outcomes, obj)
    if outcomes is not None and config.inbox is not None:
        # Not in a finally of the generator: one that SGLang never starts would never run it.
        weakref.finalize(outputs, config.inbox.forget, key)
    return outputs if request is not None else _as_lists(outputs)


async def _as_lists(outputs: Outputs) -> Outputs:
    """Numbers as lists, for a caller in this process, as SGLang has them; over HTTP arrays stay until they are JSON."""
    async for output in outputs:
        output["meta_info"] = {name: _listed(value) for name, value in output["meta_info"].items()}
        yield output


def _listed(value: Any) -> Any:
    """An array, or a list of arrays, as nested lists of numbers; anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [part.tolist() for part in value]
    return value


def _arrived(requested: Requested, values: Values) -> Values:
    return {name: requested[name][0].arrived(requested[name][1], own) for name, own in values.items()}


def _fewest_tokens(sampling_params: dict[str, Any]) -> int:
    """The fewest tokens that the answer has: before several samples SGLang generates none, to fill its cache."""
    return int(sampling_params.get("n", 1) > 1 and sampling_params.get("max_new_tokens") != 0)


async def _with_fields(outputs: Outputs, requested: Requested, outcomes: OutcomeReader | None, obj: Any) -> Outputs:
    collects = any(capability.collects for capability, _ in requested.values())
    output_ids: list[int] = []
    async for stock in outputs:
        # SGLang's own goes to its exporter, logs and dumps, some of them later: what is ours is in the answer alone.
        output = {**stock, "meta_info": dict(stock["meta_info"])}
        meta = output["meta_info"]
        output_ids = _all_ids(output_ids, output) if collects else []
        answer = Answer(meta, obj.sampling_params, output.get("prompt_token_ids"), output_ids)
        try:
            part = _chunk if meta.get("finish_reason") is None else _end
            meta.update(await part(answer, requested, outcomes))
        except TesseraError as error:
            if not obj.stream:
                raise
            meta["finish_reason"] = _abort(error)
        yield output


async def _chunk(answer: Answer, requested: Requested, outcomes: OutcomeReader | None) -> dict[str, Any]:
    """The fields of the reads that a chunk of a stream completes."""
    tokens = answer.meta["completion_tokens"]
    complete = {
        name: capability.complete(tokens)
        for name, (capability, options) in requested.items()
        if capability.next_read(options, 0) is not None
    }
    if outcomes is None or not complete:
        return {}
    try:
        values = await outcomes.until(complete)
    except RowsUnavailable:
        return {}
    found: dict[str, Any] = {}
    for name in complete:
        capability, options = requested[name]
        found |= await capability.chunk(options, values.get(name, ()))
    return found


async def _end(answer: Answer, requested: Requested, outcomes: OutcomeReader | None) -> dict[str, Any]:
    """The fields of a whole answer, from what the scheduler read and from what is known here."""
    meta = answer.meta
    refused = _is_refused(meta["finish_reason"])
    if refused or meta["completion_tokens"] < _fewest_tokens(dict(answer.params)):
        requested, outcomes = {name: own for name, own in requested.items() if not own[0].awaits(own[1])}, None
    try:
        values: Values = {} if outcomes is None else await _last_values(meta, outcomes)
    except RowsUnavailable as error:
        unavailable = {name: own for name, own in requested.items() if own[0].awaits(own[1])}
        others = {name: own for name, own in requested.items() if name not in unavailable}
        return _without(answer, unavailable, error) | await _responses(answer, others, {})
    return await _responses(answer, requested, values)


async def _last_values(meta: Mapping[str, Any], outcomes: OutcomeReader) -> Values:
    """What the scheduler read when the request ended.

    Raises:
        RowsUnavailable: it was aborted while it waited, new or retracted; SGLang counts no prompt tokens then.
        RequestFailed: it could not be read.
    """
    if "prompt_tokens" not in meta:
        raise RowsUnavailable(REQUEST_ABORTED, "the request was aborted while it waited, and had no rows")
    with timed(AWAIT_ROWS):
        return await outcomes.remaining()


async def _responses(answer: Answer, requested: Requested, values: Values) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (capability, options) in requested.items():
        found |= await capability.respond(options, values.get(name, ()), answer)
    return found


def _without(answer: Answer, requested: Requested, error: RowsUnavailable) -> dict[str, Any]:
    """The answer's fields where there are no rows to vouch for: null, and why."""
    if config.metrics is not None:
        config.metrics.count_unavailable(error.code)
    found: dict[str, Any] = {ROWS_UNAVAILABLE: str(error)}
    for name, (capability, options) in requested.items():
        found |= capability.without(options, error.values.get(name, ()), answer)
    return found


def _is_refused(reason: dict[str, Any]) -> bool:
    """Whether the answer is an error of SGLang's. Aborted on demand, a request keeps the tokens that it has."""
    return reason.get("type") == "abort" and reason.get("status_code") is not None


def _all_ids(so_far: list[int], output: dict[str, Any]) -> list[int]:
    """All generated ids: SGLang's chunks hold all, or with --incremental-streaming-output the new ones."""
    ids: list[int] = output.get("output_ids") or []
    return ids if len(ids) == output["meta_info"].get("completion_tokens") else [*so_far, *ids]


def _abort(error: TesseraError) -> dict[str, Any]:
    """The status of a stream is sent already: there a failure ends it as SGLang's own aborts do."""
    note(error, "a stream")
    return {"type": "abort", "message": str(error), "status_code": HTTPStatus(error.status), "err_type": error.code}
