"""Tests of one server stay together, and each server starts once in a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera_testing.grouping import groups_of
from tessera_testing.pool import StartedTwiceError, Starts

A, B, C, D = (0, ""), (1, ""), (2, "x"), (2, "y")


def test_servers_that_a_test_needs_together_are_one_group() -> None:
    """Also where the second of them is the first of other tests; another value of a parameter is another server."""
    assert groups_of([[A], [D], [], [B, C], [C]]) == {A: A, B: B, C: B, D: D}
    assert groups_of([[B, C], [D], [A, C], [B]]) == {A: A, B: A, C: A, D: D}
    assert groups_of([[A, B], [C, D], [B, D]]) == dict.fromkeys((A, B, C, D), A)


def test_a_second_start_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    """In whatever process; paths in a process's own folder are the same, other options are not."""
    one, other = (Starts(tmp_path / "servers", tmp_path / worker) for worker in ("gw0", "gw1"))
    one.note((tmp_path / "gw0/model", ("--dtype", "float16")))
    other.note((tmp_path / "gw1/model", ("--dtype", "bfloat16")))
    with pytest.raises(StartedTwiceError, match="test_a_second_start_is_an_error"):
        other.note((tmp_path / "gw1/model", ("--dtype", "float16")))
