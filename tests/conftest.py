"""Options and fixtures of every test. Nothing heavy is imported here: the unit tests need neither torch nor SGLang."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import signal
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing.grouping import Place, groups_of
from tessera_testing.marks import absent
from tessera_testing.pool import MakeServer, ServerPool, Starts
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.prepared.server import ForkedServer
from tessera_testing.refusal import Refusal, expect_refusal

# Folders whose every test starts the real server.
ENGINE_FOLDERS = ("engine_cpu", "faults", "fuzz", "real")
# Fixtures that are servers, one for each set of options, in the order in which their tests run. With a parameter, each
# value is a server. The pool ends a test that starts one a second time: what several tests need is declared here.
SERVERS = (
    "server",
    "speculative",
    "stock",
    "forked",
    "injecting",
    "strained",
    "fingerprinting",
    "bare",
    "bf16",
    "fp16",
    "narrow",
    "training",
    "failing",
    "decoding",
    "dice",
    "experts",
    "attending",
    "forgetting",
    "staged",
    "replicas",
)
LOG_LINES = 40
SITE = Path(__file__).parent / "site"
# Modules of `sglang.srt.models` that servers of the tests need. Importing the 200 others is a fifth of each start.
MODELS = (
    *("llama", "llama_eagle", "llama_eagle3", "qwen3", "qwen3_moe"),
    *("deepseek_v2", "mimo", "minicpm", "granitemoehybrid", "mellum", "qwen3_next"),
)
MORE_MODELS = (
    *("mistral", "qwen2", "gemma", "gemma2", "gemma3_causal", "phi3", "glm4", "olmo2", "granite", "mixtral"),
    *("qwen2_moe", "gpt_oss", "glm4_moe", "glm4_moe_lite", "llama4", "commandr", "transformers"),
    *("qwen3_5", "qwen3_5_text", "qwen3_vl", "falcon_h1"),
)

HIDDEN = "--enable-return-hidden-states"

_pool_key = pytest.StashKey[ServerPool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the tests that start servers."""
    group = parser.getgroup("tessera")
    group.addoption("--server-log-dir", type=Path, help="keep the log of each server in this folder")
    group.addoption(
        "--server-args",
        type=shlex.split,
        default=[],
        help="further arguments of every server, for example --server-args='--attention-backend fa3'",
    )
    group.addoption("--models-table", type=Path, help="note in this JSON file what tests of architectures find")
    group.addoption(
        "--spawn", action="store_true", help="start every server as users do, not as a fork of a process with SGLang"
    )


def pytest_configure(config: pytest.Config) -> None:
    """End on SIGTERM as on Ctrl-C, or servers would live on, in sessions of their own. Keep their starts short."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(_unused_models(config)))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that import TileSpec's hooks, or start servers with it, where this SGLang does not have it."""
    path = collection_path
    if path.suffix != ".py" or path.parent.name not in {"contract", "kernels", "engine_cpu"} or not absent("tilespec"):
        return None
    return path.name.startswith("test_tilespec") or "tessera_patches.tilespec" in path.read_text() or None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what lies in the engine's folders, so that no test there can forget it; put tests of one server together.

    Where two processes share the tests (pytest-xdist), those of one server stay in one of them, and so do those of
    servers that a test needs together. Tests without a server of `SERVERS` stay together by their file.
    """
    here = Path(__file__).parent
    needed = [_needed(item) for item in items]
    left_out = "not full" in config.getoption("markexpr")  # pytest takes these tests away later
    run = [not (left_out and item.get_closest_marker("full")) for item in items]
    first = groups_of(itertools.compress(needed, run))
    turns: list[tuple[Any, ...]] = []
    for item, places in zip(items, needed, strict=True):
        group = first.get(places[0], places[0]) if places else None
        item.add_marker(pytest.mark.xdist_group(f"{SERVERS[group[0]]} {group[1]}" if group else item.path.stem))
        # A group's servers one after the other: first the tests that need an earlier one, which still runs, beside it.
        turns.append((group, places[-1], len(places) == 1) if places else ())
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in ENGINE_FOLDERS:
            item.add_marker(pytest.mark.engine)
    order = sorted(range(len(items)), key=turns.__getitem__)
    items[:] = [items[number] for number in order]


def _needed(item: pytest.Item) -> list[Place]:
    """The servers of `SERVERS` that a test needs, in their order; it asks for some by a parameter that names them."""
    fixtures = {*getattr(item, "fixturenames", ())}
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    names = {value for value in params.values() if isinstance(value, str)} if "request" in fixtures else set()
    if "server_pool" in fixtures:
        names |= fixtures
    return [(place, str(params.get(name, ""))) for place, name in enumerate(SERVERS) if name in names]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the logs of the running servers beside a failure."""
    report = yield
    pool = item.config.stash.get(_pool_key, None)
    if report.failed and pool is not None:
        for server in pool.alive:
            report.sections.append((f"log of {server.url}", "\n".join(server.log.splitlines()[-LOG_LINES:])))
    return report


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """A Python that has imported the engine."""
    with Interpreter() as interpreter:
        yield interpreter


@pytest.fixture(scope="session")
def make_server(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> MakeServer:
    """Makes servers: forks of a process that has imported SGLang; on a GPU or with ``--spawn`` as users start them."""
    spawned = gpu_present() or pytestconfig.getoption("--spawn")
    return Server if spawned else partial(ForkedServer, request.getfixturevalue("interpreter"))


@pytest.fixture(scope="session")
def refusal(make_server: MakeServer) -> Refusal:
    """Starts a server that must refuse to start, and returns its log."""
    return partial(expect_refusal, make=make_server)


@pytest.fixture(scope="session")
def server_pool(
    pytestconfig: pytest.Config, make_server: MakeServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerPool]:
    """Real servers by their options; tests that ask for equal options share one, in all processes of a run."""
    common_args = tuple(pytestconfig.getoption("--server-args"))
    log_dir = pytestconfig.getoption("--server-log-dir")
    if log_dir is not None:
        log_dir /= os.environ.get("PYTEST_XDIST_WORKER", "")  # each process counts its own servers
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    # Spawned servers may be the same as forked ones, and on a GPU memory decides how long one lives.
    starts = None if make_server is Server else Starts(shared / "servers", own)
    progress = _printer(pytestconfig)
    with ServerPool(
        common_args=common_args, log_dir=log_dir, progress=progress, make=make_server, starts=starts
    ) as pool:
        pytestconfig.stash[_pool_key] = pool
        yield pool
        del pytestconfig.stash[_pool_key]


@pytest.fixture(scope="session")
def projections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two projections to H = 256: ``layer3`` from width 32, with a bias, and ``flip``, which reverses a vector."""
    import numpy as np
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("projections")
    random = np.random.default_rng(7)
    layer3 = {"weight": random.standard_normal((256, 32)) / 64, "bias": random.standard_normal(256) / 64}
    save_file({name: own.astype("<f4") for name, own in layer3.items()}, folder / "layer3.safetensors")
    save_file({"weight": np.eye(256, dtype="<f4")[::-1].copy()}, folder / "flip.safetensors")
    return folder


@pytest.fixture
def server(server_pool: ServerPool) -> Server:
    """The plain server with rows, float32; shared by every test that needs no other option.

    As `injecting`, `fingerprinting` and one of `dice`, it is started as users do: one server of each capability is.
    """
    return server_pool.get(HIDDEN, spawned=True)


@pytest.fixture
def forked(server_pool: ServerPool) -> Server:
    """The same, started as most servers of the tests are; a second server with rows where a test needs two."""
    return server_pool.get(HIDDEN)


@pytest.fixture
def injecting(server_pool: ServerPool, projections: Path) -> Server:
    """A server with injection and rows, float32; shared by every test that injects."""
    return server_pool.get(HIDDEN, "--injection-projections", str(projections), spawned=True)


def _unused_models(config: pytest.Config) -> list[str]:
    """All but those that are served, by file name; none where SGLang is not installed.

    Nothing of SGLang may be imported here.
    """
    engine = importlib.util.find_spec("sglang")
    folders = (engine and engine.submodule_search_locations) or []
    found = {path.stem for folder in folders for path in Path(folder, "srt/models").glob("*.py")}
    return sorted(found - {*MODELS} - {*(MORE_MODELS if config.getoption("--models-table") else ())})


def _printer(config: pytest.Config) -> Callable[[str], None]:
    """Return a print that pytest does not hold back: a start takes long enough to be told."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {line}", end="", flush=True)  # noqa: T201 - see above

    return show
