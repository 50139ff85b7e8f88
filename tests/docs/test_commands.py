"""Every command of help texts and pages can be typed as it stands, and runs, here or in the test that is named."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.cli import parser
from tessera.flags import ENVIRONMENT, Flags
from tessera.launching.command import environment
from tessera.launching.server import Server
from tessera_testing.drafts import MODELS
from tessera_testing.pages import ADDRESS, ROOT, blocks
from tessera_testing.pool import MakeServer
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.starts import RANKS_ON_CPUS, STAGES_ON_CPUS
from tessera_testing.tiny import TINY

OTHERS = {"lm_eval": "lm-eval"}
"""Commands of other tools, and the heading under which they stand."""
LAUNCH = "-m sglang.launch_server"
BENCHMARK = "tilespec.bench_tilespec"
RUN_ELSEWHERE = {
    "make ": ".ci/run",  # the others take minutes: results of each are committed
    "pip install": ".ci/venv",
    "source ": ".ci/venv",
    "export ": "tests/engine_cpu/test_ways_in.py",
    "lm_eval ": "docs/guide/tools.md",  # needs data from the internet; the page says "not tested"
    ".venv/bin/python -m tessera_testing.page_tables": "tests/docs/test_docs.py",
    "SGLANG_URL=http://127.0.0.1:30000 make ": "Makefile",
    f"PYTHONPATH=benchmarks:benchmarks/models python -m {BENCHMARK}": "benchmarks/tilespec/README.md",
    "python -m sglang.bench_serving": "tests/engine_cpu/test_endpoints.py",
    "tessera encode": "tests/clients/test_encode.py",
    "tessera serve": "tests/unit/test_cli_serve.py",
    "tessera seams diff": "tests/contract/test_review.py",
    "tessera tilespec": "tests/unit/test_tilespec_cache.py",
    "tessera toploc calibrate": "tests/unit/test_calibration.py",
    "tessera verify": "tests/engine_cpu/test_toploc.py",
    "curl -s http://127.0.0.1:30000/metrics": "tests/engine_cpu/test_metrics.py",
    "curl http://127.0.0.1:30000/release": "tests/engine_cpu/test_rl_loops.py",
    "curl http://127.0.0.1:30000/resume": "tests/engine_cpu/test_rl_loops.py",
    "SGLANG_URL=http://127.0.0.1:30000 python examples/best_first": "tests/engine_cpu/test_examples.py",
}
"""How lines begin that are not run here, and the file that runs or tries their like."""
PROGRAM = """
import argparse, json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for line in json.loads(sys.argv[1]):
    print(line, file=sys.stderr)
    parser.parse_args(line)
"""


def parsers(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Itself and those of its commands."""
    yield one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def join_continued_lines(text: str) -> str:
    """Continued lines as one."""
    return re.sub(r"\\\n\s*", "", text)


def commands() -> Iterator[str]:
    """Commands in blocks of pages: lines of ``shell``, and those after a prompt in ``console``."""
    for block in blocks("shell"):
        yield from (line for line in join_continued_lines(block.code).splitlines() if line.strip())
    for block in blocks("console"):
        yield from re.findall(r"^\$ (.+)$", join_continued_lines(block.code), re.MULTILINE)


def ours() -> Iterator[str]:
    """Our own commands, those of help texts too, without the name."""
    texts = [one.epilog or "" for one in parsers(parser())]
    for line in [*commands(), *join_continued_lines("\n".join(texts)).splitlines()]:
        if line.strip().startswith("tessera "):
            yield line.strip().removeprefix("tessera ")


LINES = sorted({line for line in commands() if not line.startswith("#")})
LAUNCHES = [line for line in LINES if LAUNCH in line]
RUN = [line for line in LINES if line not in LAUNCHES and not line.startswith(tuple(RUN_ELSEWHERE))]


@pytest.mark.engine
@pytest.mark.parametrize("line", RUN)
def test_line_runs(line: str, server: Server, tmp_path: Path) -> None:
    """With the address of the tests' server."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    code = line.replace(ADDRESS, server.url)
    command = ["bash", "-euo", "pipefail", "-c", code]
    env = environment({"PATH": path})
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert ended.stdout


def test_other_lines_run_elsewhere() -> None:
    """In files that exist, and no beginning is there in vain."""
    for begin, file in RUN_ELSEWHERE.items():
        assert (ROOT / file).exists(), file
        assert any(line.startswith(begin) for line in LINES), begin


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.parametrize("line", [line for line in LAUNCHES if "--moe-runner-backend" not in line])  # needs a GPU
def test_server_starts(line: str, make_server: MakeServer, projections: Path, tmp_path: Path) -> None:
    """With the tiny model; without a GPU after the options of the CPU engine. It generates."""
    thresholds = tmp_path / "thresholds.json"
    thresholds.write_text(json.dumps({"thresholds": asdict(Thresholds()), "topk": 128}))
    named = {"DRAFT": MODELS["EAGLE3"], "projections": projections, "thresholds.json": thresholds}
    _, _, *options = (str(named.get(word, word)) for word in shlex.split(line.partition(LAUNCH)[2]))
    ranks = RANKS_ON_CPUS if "--tp-size" in options else STAGES_ON_CPUS if "--dp-size" in options else {}
    key = {"Authorization": "Bearer KEY"} if "--api-key" in options else {}
    with make_server(TINY, *options, env=ranks) as server:
        body = {"text": "import os", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
        answer = httpx.post(f"{server.url}/generate", json=body, headers=key, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["meta_info"]["completion_tokens"] == 2


@pytest.mark.parametrize("command", sorted(set(ours())))
def test_command(command: str) -> None:
    """It is parsed, to its last word."""
    words = shlex.split(command, comments=True)
    end = next((i for i, word in enumerate(words) if word in {">", "|", "&&"}), len(words))
    assert callable(parser().parse_args(words[:end]).run)


def test_commands_are_found() -> None:
    """Those with continued lines too."""
    assert any(command.startswith("toploc calibrate") and "--at-once" in command for command in ours())


def _make(words: list[str]) -> bool:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return words[0] in targets


def _pip(words: list[str]) -> bool:
    extras = re.findall(r'^    "(\w+)": ', (ROOT / "setup.py").read_text(), re.MULTILINE)
    wanted = re.findall(r"\[(\w+)\]", words[-1])
    return words[0] == "install" and set(wanted) <= set(extras)


def _export(words: list[str]) -> bool:
    name, _, value = words[0].partition("=")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ENVIRONMENT, value)
        return name == ENVIRONMENT and isinstance(Flags.of_environment(), Flags)


def _python(words: list[str]) -> bool:
    if words[0] != "-m":
        return (ROOT / words[0]).exists()
    return words[1] in {"sglang.launch_server", "sglang.bench_serving", "tessera_testing.page_tables", BENCHMARK}


CHECKS: dict[str, Callable[[list[str]], bool]] = {
    "make": _make,
    "source": lambda words: words == [".venv/bin/activate"],
    "pip": _pip,
    "export": _export,
    "python": _python,
    "curl": lambda words: any(word.startswith("http://127.0.0.1:30000/") for word in words),
    "tessera": lambda _: True,  # above
    **dict.fromkeys(OTHERS, lambda _: True),
}


@pytest.mark.parametrize("line", LINES)
def test_line(line: str) -> None:
    """What it starts is there; a command that nobody knows is no example."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word) or "export" in line]
    name, *arguments = words
    assert CHECKS[name.rpartition("/")[2]](arguments), line


@pytest.mark.engine
def test_servers_take_their_options(interpreter: Interpreter, tmp_path: Path) -> None:
    """SGLang's own parser, with our options, reads every launch line."""
    lines = [shlex.split(line.partition(LAUNCH)[2]) for line in LAUNCHES]
    assert len(lines) > 10
    ended = interpreter.finish(("-c", PROGRAM, json.dumps(lines)), environment({}), tmp_path, 250)
    assert ended.returncode == 0, ended.stderr[-2000:]
