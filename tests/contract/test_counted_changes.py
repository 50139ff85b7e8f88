"""Changes that no registry makes count for their seams."""

from __future__ import annotations

from typing import Any

import pytest

from tessera_patches.core import calls, changes
from tessera_patches.engine.attention import with_graphs
from tessera_patches.guard.scheduler import check_request
from tessera_patches.inject.forward import place_at_embedding
from tessera_patches.inventory import SEAMS
from tessera_patches.tilespec.draft.first_tokens import LastRowsExtend
from tessera_patches.tilespec.extend.last_rows import compute_last_rows_only


@pytest.fixture(autouse=True)
def zero() -> None:
    """Nothing was called yet."""
    calls.share()
    calls.forget(SEAMS)


class Runner:
    """Something of SGLang's."""

    attn_backend = decode_cuda_graph_runner = None

    def forward(self) -> int:
        """What is changed."""
        return 3


class Other(Runner):
    """Its class, as we have it."""


def counted(handler: Any, place: str = "") -> int:
    """How often a seam was counted."""
    return calls._counts[calls.index_of(handler, place)]


def test_changes_are_counted() -> None:
    """Calls of a method, fields that were set, objects of a class; a handler's seams apart."""
    runner, by = Runner(), LastRowsExtend
    changes.replace_method(place_at_embedding, runner, "forward", lambda: 4)
    assert [runner.forward(), runner.forward(), counted(place_at_embedding)] == [4, 4, 2]
    with changes.Tap(by, Runner(), "forward") as tapped:
        tapped._owner.forward()
    assert [counted(by, "forward"), counted(by, "execute")] == [1, 0]
    with changes.TemporaryFields(with_graphs, runner, attn_backend=5):
        pass
    assert [counted(with_graphs, name) for name in ("attn_backend", "decode_cuda_graph_runner")] == [1, 0]
    changes.change_class(check_request, runner, Other)
    assert counted(check_request) == 1


def test_a_handler_of_several_seams_says_which() -> None:
    """One of none counts nowhere that is read."""
    with pytest.raises(ValueError, match=r"several changes of .*:compute_last_rows_only end with 'forward'"):
        calls.count(compute_last_rows_only, "forward")
    assert calls.index_of(Runner) == len(SEAMS)
