"""The way from the scheduler to the main process: packing, and both ends of the socket."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.delivery import inbox as inbox_module
from tessera.delivery import outbox as outbox_module
from tessera.delivery.inbox import Inbox, OutcomeReader
from tessera.delivery.outbox import Outbox
from tessera.delivery.outcome import Outcome, Part, RowStoreStats, Values, pack, unpack
from tessera.errors import ROW_STORE_FAILED, WEIGHTS_CHANGED, RequestFailed, RowsUnavailable, StartRefused
from tessera.rows.kinds import all_finite
from tessera.rows.reader import Fetched, Read
from tessera_testing.reads import fetched


class Broken(Read):
    """A read whose copies never arrive."""

    def result(self, *, wait: bool = False) -> Fetched | None:  # noqa: ARG002
        """As `Read.result`."""
        raise RuntimeError("planted")


class Late(Read):
    """A read that has not arrived until somebody waits."""

    def result(self, *, wait: bool = False) -> Fetched | None:
        """As `Read.result`."""
        return super().result() if wait else None


def brought(vectors: list[list[float]], *rows: torch.Tensor, dtype: str = "float32") -> Fetched:
    """What a read would have brought."""
    hidden_size = len(vectors[0]) if vectors else 1
    return fetched(hidden_size, dtype, pool=[torch.tensor(vectors, dtype=torch.float32)], rows=list(rows))


def pooled(tokens: int) -> Part:
    """An embedding of so many rows."""
    return Part("embed", "pool", tokens)


def raw(rows: int) -> Part:
    """So many raw rows."""
    return Part("states", "rows", rows)


def tops(values: int) -> Part:
    """A fingerprint of so many values."""
    return Part("fingerprints", "top", values)


def ids(*values: int) -> Part:
    """Token ids of a prompt, which need no read."""
    return Part("token_ids", "ids", list(values))


def test_round_trip() -> None:
    """Each vector and each matrix of rows comes back with its own outcome, bit by bit."""
    outcomes = [
        Outcome("a", (pooled(3),)),
        Outcome("none", (pooled(0),)),
        Outcome("bad", code="code", message="why"),
        Outcome("both", (pooled(1), raw(2))),
        Outcome("rows", (raw(1),), more=True, resets=False),
        Outcome("no rows", (raw(0),)),
    ]
    matrices = [torch.tensor(m, dtype=torch.bfloat16).reshape(-1, 2) for m in ([1, 2, 3, 4], [5, 6], [])]
    found = unpack(pack(outcomes, brought([[1, 2], [3, 4]], *matrices, dtype="bfloat16")))[0]
    assert [delivered.outcome for delivered in found] == outcomes
    vectors = [own for delivered in found for own in delivered.values.get("embed", [None])]
    listed = [own and (None if own.vector is None else own.vector.tolist(), own.tokens) for own in vectors]
    assert listed == [([1, 2], 3), (None, 0), None, ([3, 4], 1), None, None]
    rows = [own for delivered in found for own in delivered.values.get("states", [None])]
    assert rows[:3] == [None] * 3
    assert [own.rows for own in rows[3:]] == [matrix.view(torch.uint8).numpy().tobytes() for matrix in matrices]
    assert [(own.dtype, own.shape) for own in rows[3:]] == [("bfloat16", (count, 2)) for count in (2, 1, 0)]


def test_token_ids_of_a_prompt() -> None:
    """They go in the header, beside an outcome that has none."""
    own = Part("token_ids", "ids", np.array([5, 2**40, 0], np.int64))
    found = unpack(pack([Outcome("a", (own,)), Outcome("b")], None))[0]
    assert [delivered.values for delivered in found] == [{"token_ids": [[5, 2**40, 0]]}, {}]


def test_row_store_stats() -> None:
    """They ride with a step, also with one that has nothing else; None where nobody counts."""
    stats = RowStoreStats(0.5, 1024, 8, 3)
    assert unpack(pack([], None, stats)) == ([], stats)
    assert unpack(pack([], None)) == ([], None)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_fails_alone(poison: float) -> None:
    """Its neighbours keep theirs."""
    a, b, c = unpack(pack([Outcome(rid, (pooled(4),)) for rid in "abc"], brought([[1, 2], [3, poison], [5, 6]])))[0]
    assert (a.outcome.code, b.outcome.code, c.outcome.code) == ("", "rows_not_finite", "")
    assert b.values == {}
    assert [own.values["embed"][0].vector.tolist() for own in (a, c)] == [[1, 2], [5, 6]]


def test_rows_that_are_not_finite_fail_with_their_vector() -> None:
    """One bad row, and the request gets nothing."""
    bad, good = torch.tensor([[1, float("nan")]]), torch.tensor([[2.0, 3.0]])
    outcomes = [Outcome(key, (pooled(1), raw(1))) for key in "ab"]
    a, b = unpack(pack(outcomes, brought([[1, 2], [3, 4]], bad, good)))[0]
    assert a.outcome.code == "rows_not_finite"
    assert a.values == {}
    assert b.values["embed"][0].vector.tolist() == [3, 4]
    assert b.values["states"][0].rows == good.numpy().tobytes()


@pytest.mark.parametrize("poison", [np.nan, -np.inf])
def test_top_values_that_are_not_finite_fail_alone(poison: float) -> None:
    """In any chunk of a request; its neighbours keep theirs."""
    found = [top_of(1, 2), top_of(3, 4), top_of(5, poison), top_of(7, 8)]
    outcomes = [Outcome("a", (tops(2),)), Outcome("b", (tops(2), tops(2))), Outcome("c", (tops(2),))]
    a, b, c = unpack(pack(outcomes, fetched(2, top=[torch.stack(found)])))[0]
    assert (a.outcome.code, b.outcome.code, c.outcome.code) == ("", "rows_not_finite", "")
    assert b.values == {}
    points = [own for delivered in (a, c) for own in delivered.values["fingerprints"]]
    assert [(own.places.tolist(), own.bits.tolist()) for own in points] == [
        ([0, 1], [0x3F80, 0x4000]),
        ([0, 1], [0x40E0, 0x4100]),
    ]


def top_of(*values: float) -> torch.Tensor:
    """These values of one chunk, at the first places, as they cross."""
    places = torch.arange(len(values), dtype=torch.int32)
    return torch.cat([places.view(torch.uint8), torch.tensor(values, dtype=torch.bfloat16).view(torch.uint8)])


def test_through_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Early, late, failed, unexpected and missing: each request gets its own."""

    async def exchange() -> Inbox:
        inbox = Inbox()
        folder = Path(inbox.address.removeprefix("ipc://")).parent
        assert folder.stat().st_mode & 0o077 == 0
        outbox = Outbox(inbox.address)
        for rid in ("a", "b", "missing"):
            inbox.expect(rid)
        assert not folder.exists()
        outbox.put([Outcome("stranger", (pooled(1),)), Outcome("a", (pooled(2),))], Read(brought([[9.0], [1.0]])))
        outbox.send()
        first = await inbox.take("a")
        assert first.outcome == Outcome("a", (pooled(2),))
        assert first.values["embed"][0].vector.tolist() == [1.0]
        outbox.put([Outcome("b", (pooled(2),))], Broken(brought([])))
        outbox.send()
        assert (await inbox.take("b")).outcome.code == "row_store_failed"
        monkeypatch.setattr(inbox_module, "DELIVERY_SECONDS", 0.05)
        assert (await inbox.take("missing")).outcome.code == "rows_not_collected"
        for rid in ("a", "b", "missing"):
            inbox.forget(rid)
        return inbox

    asyncio.run(exchange())._socket.close()


def test_a_scheduler_that_cannot_connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It does not start: its rows would wait for ever."""
    monkeypatch.setattr(outbox_module, "_CONNECT_MILLISECONDS", 50)
    with pytest.raises(StartRefused, match="nothing receives rows"):
        Outbox(f"ipc://{tmp_path}/results")


def test_a_temporary_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The log says where the socket is instead; where it can, nothing is said."""
    said: list[str] = []
    monkeypatch.setattr(inbox_module.logger, "warning", lambda text, *values: said.append(text % values))
    full, other = tmp_path / "full", tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(full))
    monkeypatch.setattr("tempfile.tempdir", str(other))
    elsewhere = Inbox()
    assert f"TMPDIR={full} cannot be written; the folder of our socket is {other}/tessera-" in said[0]
    said.clear()
    monkeypatch.setenv("TMPDIR", str(other))
    there = Inbox()
    assert not said
    for inbox in (elsewhere, there):
        inbox.hide()
        inbox._socket.close()


@pytest.mark.parametrize("end", ["raise RuntimeError", "signal.raise_signal(signal.SIGQUIT)"])
def test_a_start_that_fails_leaves_no_folder(tmp_path: Path, end: str) -> None:
    """By an error here, or where a scheduler sends SIGQUIT: SGLang's handler ends this process with SIGKILL."""
    code = (
        "import os, signal; from tessera.delivery.inbox import Inbox;"
        "from tessera_patches.core.changes import before_signal;"
        "signal.signal(signal.SIGQUIT, lambda *_: os.kill(os.getpid(), signal.SIGKILL));"
        "inbox = Inbox(); before_signal(Inbox, signal.SIGQUIT, inbox.hide);"
        f"print(inbox.address, flush=True); {end}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"ipc://{tmp_path}/tessera-")
    assert done.returncode == (1 if "raise " in end else -signal.SIGKILL)
    assert list(tmp_path.glob("tessera-*")) == []


def test_steps_are_sent_in_their_order() -> None:
    """One that has not arrived holds back those after it, until somebody waits."""

    async def exchange() -> None:
        inbox = Inbox()
        outbox = Outbox(inbox.address)
        for rid in "ab":
            inbox.expect(rid)
        outbox.put([Outcome("a", (pooled(1),))], Late(brought([[1.0]])))
        outbox.put([Outcome("b", (pooled(1),))], Read(brought([[2.0]])))
        outbox.send()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inbox._expected["b"].arrived.get(), 0.2)
        outbox.send(wait=True)
        vectors = [(await inbox.take(rid)).values["embed"][0].vector for rid in "ab"]
        assert [vector.tolist() for vector in vectors] == [[1.0], [2.0]]
        inbox._socket.close()

    asyncio.run(exchange())


def test_what_arrives_early_is_prepared_before_anybody_takes_it() -> None:
    """Parts of a running request, then the last: prepared in their order when they come, taken together."""

    async def exchange() -> None:
        inbox = Inbox()
        outbox = Outbox(inbox.address)
        prepared: list[Values] = []
        both = asyncio.Event()

        def prepare(values: Values) -> Values:
            prepared.append(values)
            if len(prepared) == 2:
                both.set()
            return {name: [("prepared", one) for one in own] for name, own in values.items()}

        inbox.expect("a", prepare)
        outcomes = OutcomeReader(inbox, "a")
        parts = [
            Outcome("a", (ids(1),), more=True),
            Outcome("a", (ids(2),), more=True, resets=False),
            Outcome("a", (pooled(2),), resets=False),
        ]
        for part in parts[:2]:
            outbox.put([part], None)
        outbox.send()
        await asyncio.wait_for(both.wait(), 5)
        assert prepared == [{"token_ids": [[1]]}, {"token_ids": [[2]]}]
        outbox.put(parts[2:], Read(brought([[1.0]])))
        outbox.send()
        found = await outcomes.remaining()
        assert found["token_ids"] == [("prepared", [1]), ("prepared", [2])]
        ((_, vector),) = found["embed"]
        assert prepared[2:] == [{"embed": [vector]}]
        assert vector.vector.tolist() == [1.0]
        assert await outcomes.remaining() == {}
        inbox._socket.close()

    asyncio.run(exchange())


def test_parts_that_begin_again_replace_those_before() -> None:
    """The rows of a retracted request were computed again, with other weights: its fingerprints are the later ones."""

    async def exchange() -> None:
        inbox = Inbox()
        outbox = Outbox(inbox.address)
        inbox.expect("a")
        parts = [
            Outcome("a", (ids(1),), more=True),
            Outcome("a", (ids(2),), more=True, resets=False),
            Outcome("a", (ids(3),), more=True),
            Outcome("a", (ids(4),), resets=False),
        ]
        for part in parts:
            outbox.put([part], None)
        outbox.send()
        assert await OutcomeReader(inbox, "a").remaining() == {"token_ids": [[3], [4]]}
        inbox._socket.close()

    asyncio.run(exchange())


def test_parts_are_taken_once_they_are_complete() -> None:
    """As many as are waited for, and what came with them; the rest at the end, each once."""

    async def exchange() -> None:
        inbox = Inbox()
        outbox = Outbox(inbox.address)
        inbox.expect("a")
        outcomes = OutcomeReader(inbox, "a")
        outbox.put([Outcome("a", (ids(1), ids(2)), more=True)], None)
        outbox.send()
        assert await outcomes.until({"token_ids": 1}) == {"token_ids": [[1], [2]]}
        assert await outcomes.until({"token_ids": 2}) == {}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(outcomes.until({"token_ids": 3}), 0.1)
        for part in (Outcome("a", (ids(3),), more=True, resets=False), Outcome("a", (ids(4),), resets=False)):
            outbox.put([part], None)
        outbox.send()
        assert await outcomes.until({"token_ids": 3}) == {"token_ids": [[3]]}
        assert await outcomes.until({"token_ids": 9}) == {}  # it ended: what is left belongs to its end
        assert await outcomes.remaining() == {"token_ids": [[4]]}
        assert await outcomes.remaining() == {}
        inbox._socket.close()

    asyncio.run(exchange())


def test_outdated_rows_are_no_failures() -> None:
    """By an error of their own; whatever comes after it, the answer has no rows."""

    async def exchange() -> None:
        inbox = Inbox()
        outbox = Outbox(inbox.address)
        for key in "ab":
            inbox.expect(key)
        outdated = Outcome("a", (ids(7),), code=WEIGHTS_CHANGED)
        outbox.put([outdated, Outcome("a"), Outcome("b", code=ROW_STORE_FAILED)], None)
        outbox.send()
        outcomes = OutcomeReader(inbox, "a")
        for _ in range(2):
            with pytest.raises(RowsUnavailable) as unavailable:
                await outcomes.remaining()
            assert unavailable.value.values == {"token_ids": [[7]]}
        with pytest.raises(RequestFailed) as raised:
            await OutcomeReader(inbox, "b").remaining()
        assert not isinstance(raised.value, RowsUnavailable)
        inbox._socket.close()

    asyncio.run(exchange())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_all_finite(dtype: str) -> None:
    """As torch says, for the largest number, both infinities, NaN, and what is next to nothing."""
    kind = getattr(torch, dtype)
    for number in (0.0, torch.finfo(kind).max, -torch.finfo(kind).tiny, np.inf, -np.inf, np.nan):
        numbers = torch.tensor([1.0, number], dtype=kind)
        content = numbers.view(torch.uint8).numpy().tobytes()
        assert all_finite(content, dtype) == bool(torch.isfinite(numbers).all()), number
