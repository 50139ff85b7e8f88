"""When a call is tried again."""

from __future__ import annotations

import itertools

import pytest

from tessera.client import (
    ClientError,
    ConnectionFailed,
    InvalidResponse,
    RateLimited,
    RequestRefused,
    RequestTimeout,
    Retry,
    ServerError,
)
from tessera.client.retry import Deadline

HOUR = 3600.0


def test_pauses_grow_and_differ() -> None:
    """Each at most twice the one before and at least half of that, up to the longest."""
    retry = Retry(times=8, first=0.5, longest=4.0)
    error = ConnectionFailed("x")
    for tried, most in enumerate((0.5, 1.0, 2.0, 4.0, 4.0)):
        pauses = {retry.pause(tried, error, HOUR) for _ in range(50)}
        assert len(pauses) > 40
        assert all(pause is not None and most / 2 <= pause <= most for pause in pauses)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionFailed("x"), True),
        (ServerError("x", status=500), True),
        (ServerError("x", status=503), True),
        (RateLimited("x", status=429), True),
        (RequestRefused("x", status=400), False),
        (RequestRefused("x", status=404), False),
        (InvalidResponse("x"), False),
        (RequestTimeout("x"), False),
    ],
)
def test_which_errors(error: ClientError, again: bool) -> None:
    """5xx, 429 and connections; never another 4xx, never an answer that is wrong."""
    assert (Retry().pause(0, error, HOUR) is not None) == again
    assert Retry().pause(3, error, HOUR) is None
    assert Retry(times=0).pause(0, error, HOUR) is None


def test_retry_after() -> None:
    """The server's word counts, unless the call's time would be over by then."""
    error = RateLimited("x", status=429, retry_after=30.0)
    assert Retry().pause(0, error, HOUR) == 30.0
    assert Retry().pause(0, error, 29.0) is None
    assert Retry().pause(0, ConnectionFailed("x"), 0.1) is None


def test_tries() -> None:
    """Three more."""
    error = ServerError("x", status=500)
    assert [Retry(first=0.001).pause(tried, error, HOUR) is None for tried in range(5)] == [False] * 3 + [True] * 2


def test_deadline() -> None:
    """It says which call, how long, and what to do."""
    Deadline(HOUR, "it").check()
    Deadline(None, "it").check()
    over = Deadline(0.0, "POST /generate")
    assert over.left == 0.0
    with pytest.raises(RequestTimeout, match=r"POST /generate took longer than 0 s; .*timeout="):
        over.check()
    with pytest.raises(RequestTimeout):
        list(over.until_due(itertools.count()))
