"""TileSpec's benchmark without an engine: what is measured, in which order, of which prompts; who waits for whom."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from tessera.tilespec.policy import Choice
from tessera_kernels import cpu
from tilespec import plugins, profile_gate, time_launches
from tilespec.bench_tilespec import _cells, waves
from tilespec.decode import Decoding, Place, decode
from tilespec.forced import Forced, Orders, force, forcing
from tilespec.progress import PROGRESS, ROW, noting
from tilespec.settings import NAMES, measured_at, server_environment

RIVALS = ["none", "k1", "k2", "k3", "k5", "k7"]
CLIENTS = [64, 128, 32, 16, 8, 1, 4]


class Decoder:
    """Notes a step of all requests that there are every few milliseconds, and answers when it is told to abort."""

    def __init__(self, notes: Path) -> None:
        self.prompts: list[int] = []
        self.flushed = 0
        self.notes = notes
        self._steps = itertools.count()
        self._lengths: list[int] = []
        self._aborted = asyncio.Event()

    async def flush(self, _: web.Request) -> web.Response:
        """A new wave begins."""
        self.flushed += 1
        self._lengths = []
        self._aborted.clear()
        return web.Response()

    async def abort(self, _: web.Request) -> web.Response:
        """The wave has enough."""
        self._aborted.set()
        return web.Response()

    async def answer(self, request: web.Request) -> web.Response:
        """Decode two tokens in a step, half a second of the notes; the first request takes the steps of all."""
        self.prompts += (await request.json())["input_ids"]
        self._lengths.append(1)
        decodes = len(self._lengths) == 1
        async with asyncio.timeout(60):
            while not self._aborted.is_set():
                await asyncio.sleep(0.005)
                if decodes:
                    self._lengths = [length + 2 for length in self._lengths]
                    self._note((next(self._steps) / 2, len(self._lengths), sum(self._lengths), 0.002, 0.001))
        return web.json_response({"meta_info": {"completion_tokens": 9, "prompt_tokens": 1, "cached_tokens": 0}})

    def _note(self, step: tuple[float, ...]) -> None:
        with self.notes.open("ab") as file:
            file.write(np.array([step], ROW).tobytes())


@pytest.fixture
def decoder(listen: Callable[[dict[str, Any]], str], tmp_path: Path) -> tuple[Decoder, Place]:
    """The server and where it is."""
    server = Decoder(tmp_path / "progress")
    url = listen({"/generate": server.answer, "/flush_cache": server.flush, "/abort_request": server.abort})
    assert noting(server.notes) == {PROGRESS: str(server.notes)}
    return server, Place(url, server.notes)


def test_waves_depend_on_clients_alone() -> None:
    """Whoever drafts has the same number; without speculation it is a quarter, and one at least."""
    assert [waves("tile", clients) for clients in (1, 4, 8, 16, 32, 64, 128)] == [32, 12, 7, 4, 3, 3, 3]
    assert [waves("none", clients) for clients in (1, 4, 8, 128)] == [8, 3, 1, 1]


def test_all_waves_are_sent(decoder: tuple[Decoder, Place]) -> None:
    """However long they take: the first prompts, in their order wave by wave, and what all of a wave decode counts."""
    server, place = decoder
    found = decode(place, Decoding(clients=3, tokens=12, temperature=0.0, waves=5), ([number] for number in range(100)))
    assert server.flushed == 5
    assert sorted(server.prompts) == list(range(15))
    assert [set(server.prompts[wave : wave + 3]) for wave in range(0, 15, 3)] == [
        set(range(wave, wave + 3)) for wave in range(0, 15, 3)
    ]
    assert len(found.metas) == 15
    assert len(found.windows) == 5
    assert found.seconds == pytest.approx(found.steps / 2)
    assert found.tokens == pytest.approx(2 * 3 * found.steps)
    assert found.launch == 0.002
    assert 5 * 3 * 6 < found.tokens <= 5 * 3 * 9  # they have 3 tokens after the first step that they can all be in


def test_rejection_sampling_is_for_tokens_that_are_sampled() -> None:
    """Only a setting that is there in both ways has a temperature."""
    settings = [*RIVALS, "tile", "tile-useless", "tile-rejecting"]
    assert measured_at(0.0, settings) == [*RIVALS, "tile", "tile-useless"]
    assert measured_at(0.8, settings) == [*RIVALS, "tile-useless", "tile-rejecting"]
    for temperature in (0.0, 0.8):
        assert measured_at(temperature, ["none", "tile-rejecting"]) == ["none", "tile-rejecting"]
        assert measured_at(temperature, ["none", "tile"]) == ["none", "tile"]


def test_what_tilespec_is_compared_with_is_stock_sglang() -> None:
    """Without Tessera; where there is no GPU, no server starts without it."""
    assert [name for name in NAMES if server_environment(name, gpu=True) == {"TESSERA_DISABLE": "1"}] == RIVALS
    assert not any(server_environment(name, gpu=False) for name in NAMES)


def test_settings_take_turns_under_each_load() -> None:
    """42 loads of seven settings: greedy and sampled ones in turn, each setting the first of as many."""
    options = argparse.Namespace(
        rounds=1, clients=CLIENTS, kinds=["mixed", "hard", "easy"], temperatures=[0.0, 0.8], only=[]
    )
    cells = list(_cells(options, [*RIVALS, "tile", "tile-rejecting"]))
    assert len(cells) == len(set(cells)) == 42 * 7
    loads = [list(load) for _, load in itertools.groupby(cells, lambda cell: cell[:4])]
    assert [load[0].temperature for load in loads] == [0.0, 0.8] * 21
    assert [load[0].clients for load in loads] == [clients for clients in CLIENTS for _ in range(6)]
    for temperature, tile in ((0.0, "tile"), (0.8, "tile-rejecting")):
        some = [load for load in loads if load[0].temperature == temperature]
        assert all({cell.setting for cell in load} == {*RIVALS, tile} for load in some)
        assert Counter(load[0].setting for load in some) == dict.fromkeys([*RIVALS, tile], 3)


def test_a_server_measures_when_its_gate_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before, and not at all if nobody opens it; what an earlier server left does not count."""
    gate = tmp_path / "gates/tile"
    for name, value in profile_gate.closed(gate).items():
        monkeypatch.setenv(name, value)
    profile_gate.let_go(gate)
    profile_gate.closed(gate)
    assert not profile_gate.arrived(gate)
    with ThreadPoolExecutor(1) as thread:
        measured = thread.submit(profile_gate._in_turn, lambda *facts: facts, "worker", "states")
        with pytest.raises(TimeoutError):
            measured.result(timeout=0.5)
        assert profile_gate.arrived(gate)
        profile_gate.let_go(gate)
        assert measured.result(timeout=5) == ("worker", "states")
    profile_gate.closed(gate)
    monkeypatch.setattr(plugins, "PATIENCE", 0.0)
    with pytest.raises(RuntimeError, match=r"nobody let this server measure its steps: no .*opened in 0 s"):
        profile_gate._in_turn(lambda: None)


def test_what_is_forced_is_done_after_the_next_prefill(tmp_path: Path) -> None:
    """By batches of its size alone; what the server would have chosen otherwise stays."""
    own = Choice(3, None, 8, 1.0, 0.1, 0.1, 0)
    path = tmp_path / "forced"
    forcing(path)
    orders = Orders(path)

    def chosen(bs: int) -> Any:
        return orders.choose(lambda *_: own, None, bs)[:3]

    force(path, Forced(bs=4, steps=7, tier=16))
    assert chosen(4) == own[:3]
    orders.read(lambda *_: None, None, 1)
    assert chosen(4) == (7, 16, 16)
    assert chosen(2) == own[:3]
    force(path, Forced(bs=4, steps=7))
    orders.read(lambda *_: None, None, 1)
    assert chosen(4) == (7, None, 32)
    forcing(path)
    assert not path.exists()


def test_launches_are_timed_in_both_sorts_of_graphs() -> None:
    """TileSpec's, of all drafts and of half of the tokens; of fixed settings there is one."""
    assert time_launches.ways(["k7", "tile"], 64) == [
        ("k7", "k7", None),
        ("tile, all", "tile", None),
        ("tile, 256 tokens", "tile", 256),
    ]


def test_what_is_hooked_is_what_is_called() -> None:
    """By its name in its module, and nothing else there measures: a hook on another function would hold nobody."""
    cpu.enable()  # else SGLang's attention is not imported on a machine without a GPU
    module, name = profile_gate._TARGET.rsplit(".", 1)
    deciders = importlib.import_module("tessera_patches.tilespec.start.deciders")
    assert vars(deciders)["tilespec_profile"] is importlib.import_module(module)
    assert f"tilespec_profile.{name}(worker, " in inspect.getsource(deciders.measured_decider)
