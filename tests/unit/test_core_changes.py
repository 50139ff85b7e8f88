"""How SGLang's objects are changed: what a change refuses, and what is left of one that ends."""

from __future__ import annotations

import contextlib
import io
import logging
from abc import ABC

import pytest

from tessera_patches.core import changes


class Abstract(ABC):  # noqa: B024 - a base that is not `object`, which matters where an object's class changes
    """As SGLang's draft workers have one."""


class Stock(Abstract):
    """As one of SGLang's."""

    size = 3

    def run(self) -> str:
        """What is changed."""
        return "stock"


class Ours(Stock):
    """One of ours that extends it."""

    def run(self) -> str:
        """Before SGLang's."""
        return f"ours, {super().run()}"


def test_an_object_of_another_class() -> None:
    """The object stays the same."""
    worker = Stock()
    changes.change_class(Stock, worker, Ours)
    assert worker.run() == "ours, stock"


def test_an_object_cannot_become_anything() -> None:
    """But one of a subclass."""
    worker = Stock()
    with pytest.raises(TypeError, match="a Stock cannot become a Abstract, which does not extend it"):
        changes.change_class(Stock, worker, Abstract)
    assert worker.run() == "stock"


def test_a_method_that_is_not_there_is_not_replaced() -> None:
    """Nobody would call it."""
    worker, other = Stock(), Stock()
    with pytest.raises(AttributeError):
        changes.replace_method(Stock, worker, "walk", lambda: "ours")
    changes.replace_method(Stock, worker, "run", lambda: "ours")
    assert (worker.run(), other.run()) == ("ours", "stock")


def test_values_are_those_from_before_again() -> None:
    """Also after an error; and one that is not there is an error that changes nothing."""
    worker = Stock()
    seen: list[int] = []
    with contextlib.suppress(ValueError), changes.TemporaryFields(Stock, worker, size=5):
        seen.append(worker.size)
        raise ValueError
    assert seen == [5]
    assert worker.size == 3
    with pytest.raises(AttributeError), changes.TemporaryFields(Stock, worker, size=5, width=7):
        pass
    assert worker.size == 3
    assert not hasattr(worker, "width")


def test_a_tap() -> None:
    """Sees each output, and what it keeps of the last; afterwards the method is the class's again."""
    worker = Stock()
    seen: list[str] = []
    with changes.Tap(Stock, worker, "run", seen.append) as tapped:
        worker.run()
        assert worker.run() == "stock"
    assert seen == ["stock"] * 2
    assert tapped.last == "stock"
    assert vars(worker) == {}
    with changes.Tap(Stock, None, "run") as nothing:
        pass
    assert nothing.last is None


def test_a_line_is_left_out_of_a_log() -> None:
    """Others are not."""
    changes.filter_log(Stock, "tessera.test_core_changes", "Switch")
    logger, lines = logging.getLogger("tessera.test_core_changes"), io.StringIO()
    logger.addHandler(logging.StreamHandler(lines))
    logger.warning("Switch %d", 3)
    logger.warning("Build %d", 3)
    assert lines.getvalue() == "Build 3\n"


def test_lists_of_sglang() -> None:
    """What was appended is forgotten, or put first; the list stays the same object."""
    kept = [1, 2, 3, 4]
    same = kept
    changes.move_to_front(Stock, kept, 3)
    assert same == [4, 1, 2, 3]
    changes.truncate(Stock, kept, 2)
    assert same == [4, 1]
