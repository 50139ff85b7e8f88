"""Server-sent events to pieces, and never a cut stream taken for a whole one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.client import ConnectionFailed, Delta, InvalidResponse, RequestRefused, ServerError
from tessera.client.stream import StreamReader


def event(text: str, ids: list[int], completed: int, reason: Any = None, **meta: Any) -> str:
    """One line."""
    known = {"finish_reason": reason, "prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": completed}
    return "data: " + json.dumps({"text": text, "output_ids": ids, "meta_info": known | meta})


def read(*lines: str, wanted: tuple[str, ...] = ()) -> list[Delta]:
    """All pieces of a stream."""
    reader = StreamReader(frozenset(wanted))
    pieces = [piece for line in lines if (piece := reader.read(line)) is not None]
    reader.end()
    return pieces


CUMULATIVE = (event("a", [1], 1), "", event("a b", [1, 2], 2), event("a b c", [1, 2, 3], 3, {"type": "length"}))
INCREMENTAL = (event("a", [1], 1), event(" b", [2], 2), ": a comment", event(" c", [3], 3, {"type": "length"}))


@pytest.mark.parametrize("lines", [CUMULATIVE, INCREMENTAL])
def test_pieces(lines: tuple[str, ...]) -> None:
    """Whether the server repeats what came before or not."""
    pieces = read(*lines, "data: [DONE]")
    assert [(piece.text, piece.output_ids) for piece in pieces] == [("a", (1,)), (" b", (2,)), (" c", (3,))]
    final = pieces[-1].final
    assert final is not None
    assert (final.text, final.output_ids, final.finish_reason) == ("a b c", (1, 2, 3), "length")


def test_a_cut_stream() -> None:
    """Also where the server had the time to say that it is done."""
    for end in ((), ("data: [DONE]",)):
        with pytest.raises(ConnectionFailed, match="not whole"):
            read(*CUMULATIVE[:-1], *end)
    with pytest.raises(ConnectionFailed):
        read()


def test_errors_in_a_stream() -> None:
    """The status of a stream is sent before it can fail; the error comes as an event or as an abort."""
    with pytest.raises(RequestRefused, match="too long"):
        read('data: {"error": {"message": "too long", "code": 400}}')
    with pytest.raises(ServerError):
        read('data: {"error": {"message": "m"}}')
    reason = {"type": "abort", "message": "m", "status_code": 500, "err_type": "rows_not_finite"}
    with pytest.raises(ServerError) as raised:
        read(CUMULATIVE[0], event("a", [1], 1, reason))
    assert raised.value.code == "rows_not_finite"


@pytest.mark.parametrize(
    "line", ["data: {", "data: 7", "data: {}", "data: []", 'data: {"text": 1}', 'data: {"error": 1}']
)
def test_no_event(line: str) -> None:
    """What is none is an error, not skipped."""
    with pytest.raises(InvalidResponse):
        read(line)
