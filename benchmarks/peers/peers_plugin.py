"""Pytest plugin that runs SGLang's own tests on a machine without a GPU: ``-p peers_plugin``.

The environment says how: ``PEERS_SIDE`` (`peers_options.SIDES`), ``PEERS_RECORDS`` (a file that gets a JSON line for
each result at once, for a run may be cut off), ``PEERS_CONTEXT`` (tokens of a request at most), ``PEERS_SHARE`` (0: a
server for each that a test starts), ``PEERS_KIND`` (``unit`` for tests that start none), ``PEERS_ON`` (our options),
``PEERS_SIZED`` (0 is without ``--tile-spec``), ``PEERS_MODEL`` (folder of the model).

Of SGLang it replaces what starts servers, names of models, and evaluations of models, which need data sets.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from peers_options import ADAPTER, EVERYTHING, MODEL, MODELS, OURS, local, server_options
from peers_servers import Servers

SIDE = os.environ["PEERS_SIDE"]
RECORDS = Path(os.environ["PEERS_RECORDS"])
UNIT = os.environ.get("PEERS_KIND") == "unit"
ON = os.environ.get("PEERS_ON", " ".join(OURS)).split()
SIZED = os.environ.get("PEERS_SIZED", "1") == "1"
_TEXT = 1500
_USED = {"llama", "llama_eagle", "llama_eagle3", "qwen3_moe", "registry", "utils"}
"""Modules of ``sglang.srt.models`` that servers need; importing the others is a fifth of each start."""
_ROLES = {"DRAFT_MODEL_EAGLE3": "eagle3", "DRAFT_MODEL_EAGLE": "eagle", "DRAFT_MODEL_STANDALONE": "draft"}

_servers: Servers | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Put ourselves in place before any test is imported."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    import torch.multiprocessing

    import tessera_kernels.cpu

    torch.multiprocessing.set_sharing_strategy("file_system")  # servers, which are no children, can open what is sent
    tessera_kernels.cpu.enable()  # the plugin does so in servers, where it is on
    if UNIT:
        if SIDE == EVERYTHING:
            _start_with_everything()
        return
    os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(_unused_models()))
    _replace_servers()
    _replace_models()
    _replace_prompts()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write each result down."""
    if report.when != "call" and report.outcome == "passed":
        return
    text = str(report.longrepr or "")
    lines = [line for line in text.splitlines() if line.startswith("E ") or ".py:" in line]
    _note(report, "\n".join(lines or text.splitlines()[-3:]) if report.outcome != "passed" else "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported is a result, too."""
    if report.failed:
        _note(report, str(report.longrepr))


def pytest_sessionfinish() -> None:
    """Leave no server."""
    if _servers is not None:
        _servers.end()


def _note(report: pytest.TestReport | pytest.CollectReport, text: str) -> None:
    with RECORDS.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"id": report.nodeid, "outcome": report.outcome, "text": text[-_TEXT:]}) + "\n")


def _start_with_everything() -> None:
    """What a process has in it that started a server with everything on: the plugin, and the server's options."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    prepare_server_args(["--model-path", str(MODEL), *server_options((), SIDE, 512)]).check_server_args()


def _replace_servers() -> None:
    global _servers  # noqa: PLW0603 - hooks of pytest have no other place
    import sglang.test.test_utils as helpers
    from sglang.srt import utils
    from sglang.srt.utils import common

    from tessera_testing.free_port import free_port

    context = int(os.environ["PEERS_CONTEXT"])
    _servers = Servers(
        lambda given: server_options(given, SIDE, context, ON, sized=SIZED),
        local,
        common.kill_process_tree,
        helpers._subprocess_popen_with_outputs,  # noqa: SLF001 - it copies output to the files of a test
        share=os.environ.get("PEERS_SHARE") != "0",
    )
    for module in (common, utils, helpers):
        module.kill_process_tree = _servers.give_back
    helpers.popen_launch_server = _servers.launch
    helpers.terminate_and_kill_process_tree = _servers.give_back_process
    port = free_port()
    helpers.DEFAULT_PORT_FOR_SRT_TEST_RUNNER = port - 1000  # SGLang's tests add as much
    helpers.DEFAULT_URL_FOR_TEST = f"http://127.0.0.1:{port}"


def _replace_models() -> None:
    import huggingface_hub
    import sglang.test.run_eval as evaluation
    import sglang.test.test_utils as helpers
    from sglang.srt.entrypoints.engine import Engine
    from transformers import AutoTokenizer

    for name, value in list(vars(helpers).items()):
        if name.startswith("DEFAULT_") and "MODEL" in name and isinstance(value, str):
            folder = next((MODELS / f"tiny-{folder}" for role, folder in _ROLES.items() if name.endswith(role)), MODEL)
            setattr(helpers, name, str(folder))
    evaluation.run_eval = helpers.run_eval = _answer_all
    hub: Any = huggingface_hub
    hub.snapshot_download = lambda *_, **__: str(ADAPTER)
    Engine.__init__ = _engine(Engine.__init__)
    read = AutoTokenizer.from_pretrained
    AutoTokenizer.from_pretrained = lambda name, *rest, **options: read(local(str(name)), *rest, **options)


def _replace_prompts() -> None:
    """Random prompts of ids that the tiny model has, and trees of them that a CPU can do."""
    import sglang.test.kits.cache_hit_kit as hits
    import sglang.test.kits.radix_cache_server_kit as tree

    grow = tree.gen_radix_tree
    ids = range(3, 1000)

    def small_tree() -> list[dict[str, Any]]:
        nodes = grow(num_nodes=60, chunk_len=128)
        return [{**node, "input_ids": [ids[token % len(ids)] for token in node["input_ids"]]} for node in nodes]

    def prompts(input_len: int, num_prompts: int, **_: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(prompt=random.choices(ids, k=input_len)) for _ in range(num_prompts)]

    tree.gen_radix_tree = small_tree
    hits.sample_random_requests = prompts


def _engine(create: Callable[..., None]) -> Callable[..., None]:
    """SGLang's ``Engine`` on the CPU, with everything on where this side has it."""

    def on_cpu(self: Any, **given: Any) -> None:
        options = {name: value for name, value in given.items() if not name.startswith(("cuda_graph", "attention_"))}
        options |= {"device": "cpu", "attention_backend": "torch_native", "dtype": "float32"}
        options |= {"mem_fraction_static": 0.9, "skip_server_warmup": True, "grammar_backend": "llguidance"}
        options.setdefault("max_total_tokens", 16384)
        if options.get("enable_lora") or options.get("lora_paths"):
            options["lora_backend"] = "torch_native"
        for name in ("model_path", "speculative_draft_model_path"):
            if options.get(name):
                options[name] = local(str(options[name]))
        if SIDE == EVERYTHING:
            options["enable_return_hidden_states"] = True
            os.environ["TESSERA_ARGS"] = " ".join(ON)
        create(self, **options)

    return on_cpu


def _answer_all(args: Any) -> dict[str, float]:
    """In place of an evaluation: prompts of all lengths at once, each of which has to be answered in full."""
    url = getattr(args, "base_url", None) or f"http://{args.host}:{args.port}"
    begin = time.monotonic()

    def one(i: int) -> int:
        text = " ".join(["def", "class", "return", "import", "self"][(i * j) % 5] for j in range(5 + 7 * i))
        sampling = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
        answer = requests.post(f"{url}/generate", json={"text": text, "sampling_params": sampling}, timeout=140).json()
        assert answer["meta_info"]["finish_reason"]["type"] == "length", answer
        return int(answer["meta_info"]["completion_tokens"])

    with ThreadPoolExecutor(16) as pool:
        tokens = sum(pool.map(one, range(32)))
    seconds = time.monotonic() - begin
    return {"score": 1.0, "output_throughput": tokens / seconds, "latency": seconds}


def _unused_models() -> list[str]:
    spec = importlib.util.find_spec("sglang")
    folders = (spec and spec.submodule_search_locations) or []
    return sorted({path.stem for folder in folders for path in Path(folder, "srt/models").glob("*.py")} - _USED)
