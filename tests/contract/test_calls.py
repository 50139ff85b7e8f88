"""Counts of calls, in the memory that processes of one server share."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import pytest

from tessera import config
from tessera.config import Settings
from tessera.errors import StartRefused
from tessera_patches.core import calls
from tessera_patches.core.seam import Phase, Runs, Seam
from tessera_patches.inventory import SEAMS
from tessera_patches.launch import liveness

ALL = Settings()
for feature in config.FEATURES:
    setattr(ALL, feature, True)
COUNTED = [seam for seam in SEAMS if seam.runs is not Runs.ON_DEMAND]


@pytest.fixture(autouse=True)
def zero() -> None:
    """Nothing was called yet."""
    calls.share()
    calls.forget(SEAMS)


def call(*seams: Seam) -> None:
    """Call a hook on each."""
    for seam in seams:
        assert calls.counted(lambda *args, **kwargs: (args, kwargs), seam)(1, a=2) == ((1,), {"a": 2})


def call_elsewhere(path: str, index: int) -> None:
    """In another process, which counts before it joins and afterwards."""
    call(SEAMS[index])
    calls.attach(path)
    call(SEAMS[index])


def test_another_process_is_seen() -> None:
    """What it called before it knew where to count, too."""
    index = SEAMS.index(COUNTED[-1])
    process = multiprocessing.get_context("spawn").Process(target=call_elsewhere, args=(calls.share(), index))
    assert calls.unreached([SEAMS[index]]) == [SEAMS[index].name]
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert calls.unreached([SEAMS[index]]) == []
    assert calls._counts[index] == 2


def test_one_on_demand_is_counted() -> None:
    """And missed by nobody."""
    seam = next(seam for seam in SEAMS if seam.runs is Runs.ON_DEMAND)
    call(seam, seam)
    assert calls.counts([seam]) == {seam.name: 2}


@pytest.mark.parametrize("seam", [seam for seam in COUNTED if seam.runs_with], ids=lambda seam: seam.name)
def test_a_condition_that_does_not_hold(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missed then."""
    monkeypatch.setattr(config, "active", ALL)
    monkeypatch.setattr(config, "conditions", ())
    assert seam not in liveness.required(seam.runs)
    assert seam in liveness.on_demand()
    monkeypatch.setattr(config, "conditions", tuple(seam.runs_with.split(", ")))
    assert seam in liveness.required(seam.runs)


def test_a_class_stays_one() -> None:
    """SGLang asks whether something is an object of it."""
    assert calls.counted(Outputs, COUNTED[0]) is Outputs


def test_the_next_server_of_a_process_starts_from_zero() -> None:
    """But for what is called before it is known that one starts."""
    call(*COUNTED)
    calls.share()
    assert calls.unreached(COUNTED) == [seam.name for seam in COUNTED if seam.phase is not Phase.LOAD]


@pytest.mark.parametrize("seam", COUNTED, ids=lambda seam: seam.name)
def test_each_is_named_where_it_was_not_called(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    """And alone; with what code that starts schedulers itself forgets."""
    monkeypatch.setattr(config, "active", ALL)
    monkeypatch.setattr(config, "conditions", config.CONDITIONS)
    call(*(other for other in COUNTED if other is not seam))
    with pytest.raises(StartRefused) as refused:
        liveness.check(seam.runs)
    line, _, hint = str(refused.value).partition("; ")
    assert line == f"SGLang did not call our hooks on {seam.name}"
    assert bool(hint) == seam.target.endswith(".configure_scheduler_process")


async def answer(outputs: Any) -> None:
    """SGLang hands a batch of outputs on."""

    async def handle(manager: Any, handled: Any) -> None:
        assert (manager, handled) == (None, outputs)

    await liveness.check_first_answers(handle, None, outputs)


class Outputs:
    """Of requests, with the number of tokens and the end of each."""

    def __init__(self, *ended: tuple[int, str | None]) -> None:
        self.completion_tokens = [tokens for tokens, _ in ended]
        self.finished_reasons = [kind and {"type": kind} for _, kind in ended]


@pytest.mark.parametrize(
    ("outputs", "stages"),
    [
        (Outputs((5, None), (0, "length"), (7, "abort")), set()),
        (Outputs((0, "length"), (1, "stop")), {Runs.REQUEST}),
        (Outputs((2, "length")), {Runs.REQUEST, Runs.DECODE}),
        (object(), None),
    ],
)
def test_which_answers_are_looked_at(monkeypatch: pytest.MonkeyPatch, outputs: Any, stages: set[Runs] | None) -> None:
    """Those that ended, with a token of their own; one without any shows nothing, and an aborted one neither."""
    looked: set[Runs] = set()
    monkeypatch.setattr(config, "active", ALL)
    monkeypatch.setattr(liveness, "_unreached", set())
    monkeypatch.setattr(liveness, "_check_or_end", lambda *found: looked.update(found))
    if stages is None:  # nothing is expected of a server without a feature
        asyncio.run(answer(outputs))
        return
    liveness.expect_answers()
    asyncio.run(answer(outputs))
    assert looked - {Runs.START} == stages
    assert liveness._unreached == {Runs.REQUEST, Runs.DECODE} - stages
