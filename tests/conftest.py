"""Options and fixtures of every test. Nothing heavy is imported here: the unit tests need neither torch nor SGLang."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from tessera.launching.command import gpu_present
from tessera.launching.server import Server
from tessera_testing.marks import absent
from tessera_testing.pool import MakeServer, ServerPool
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.prepared.server import ForkedServer
from tessera_testing.refusal import Refusal, expect_refusal

# Folders whose every test starts the real server.
ENGINE_FOLDERS = ("engine_cpu", "faults", "fuzz", "real")
# Fixtures that are servers, in the order in which their tests run: each starts once, and two live at a time.
SERVERS = (
    "server",
    "bare",
    "strained",
    "injecting",
    "stock",
    "bf16",
    "fingerprinting",
    "narrow",
    "training",
    "failing",
    "speculative",
    "dice",
    "experts",
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
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in the engine's folders, so that no test there can forget it; put tests of one server together.

    Where two processes share the tests (pytest-xdist), those of one server, or of one file, stay in one of them.
    """
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in ENGINE_FOLDERS:
            item.add_marker(pytest.mark.engine)
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Place of a test's last server in `SERVERS`; there, tests that need an earlier one beside it come first."""
    places = _places(item)
    return (places[-1], len(places) == 1) if places else (-1, True)


def _group(item: pytest.Item) -> str:
    """The first server that a test needs, with its parameter if it has one; or the test's file."""
    places = _places(item)
    if not places:
        return item.path.stem
    name = SERVERS[places[0]]
    callspec = getattr(item, "callspec", None)
    return f"{name}-{callspec.params[name]}" if callspec and name in callspec.params else name


def _places(item: pytest.Item) -> list[int]:
    """Where a test's servers are in `SERVERS`, ascending."""
    names = set(getattr(item, "fixturenames", ()))
    if callspec := getattr(item, "callspec", None):
        names.update(value for value in callspec.params.values() if isinstance(value, str))
    return [place for place, server in enumerate(SERVERS) if server in names]


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
def server_pool(pytestconfig: pytest.Config, make_server: MakeServer) -> Iterator[ServerPool]:
    """Real servers by their options; tests that ask for equal options share one."""
    common_args = tuple(pytestconfig.getoption("--server-args"))
    log_dir = pytestconfig.getoption("--server-log-dir")
    if log_dir is not None:
        log_dir /= os.environ.get("PYTEST_XDIST_WORKER", "")  # each process counts its own servers
    progress = _printer(pytestconfig)
    with ServerPool(common_args=common_args, log_dir=log_dir, progress=progress, make=make_server) as pool:
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
    """The plain server with rows, float32; shared by every test that needs no other option."""
    return server_pool.get(HIDDEN, spawned=True)


@pytest.fixture(scope="session")
def spawned(pytestconfig: pytest.Config) -> bool:
    """Whether one server of each capability is started as users do. In ``make test`` it is the plain one alone."""
    return "not full" not in pytestconfig.getoption("markexpr")


@pytest.fixture
def injecting(server_pool: ServerPool, projections: Path, spawned: bool) -> Server:
    """A server with injection and rows, float32; shared by every test that injects."""
    return server_pool.get(HIDDEN, "--injection-projections", str(projections), spawned=spawned)


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
