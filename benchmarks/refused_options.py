r"""What happens with each option that Tessera refuses, if it does not refuse it: the proof of each line of the tables.

For each trial the stock server starts with the option and answers 65 requests; then ours, with the feature on and
nothing refused by name, answers 60 canaries and a second turn of each, and makes and verifies fingerprints. One JSON
line for each: what the stock server said where it does not serve, how our start ended, or how many vectors were wrong.
Both ranks of what needs two GPUs share one where there is one.

  python benchmarks/refused_options.py --out refused.jsonl [--only PART_OF_A_NAME ...] [--at-once 8]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch

from provenance import provenance
from tessera import versions
from tessera.launching.command import command, environment, gpu_present
from tessera.launching.ports import port_of, reserve_port
from tessera.launching.server import Server, ServerStartError
from tessera_patches import support
from tessera_testing.architectures import ARCHITECTURES, made, make
from tessera_testing.canary import canaries, fly, judge
from tessera_testing.claims import prove_and_verify
from tessera_testing.drafts import chain, code_and_noise, drafting
from tessera_testing.endpoints import metrics
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.prepared.server import ForkedServer
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import (
    FLOAT32_STATES,
    HOST_CACHE,
    RANKS_ON_CPUS,
    SMALL,
    STAGES_ON_CPUS,
    STATES_ON_A_CPU,
    TWO_RANKS,
)
from tessera_testing.tiny import TINY, TINY_MOE

SITE = Path(__file__).parents[1] / "tests/site"
FEATURES = {
    "rows": ("--enable-return-hidden-states", "--toploc-verification"),
    "inject": ("--enable-return-hidden-states", "--enable-injection"),
    "tilespec": ("--enable-return-hidden-states", "--tile-spec"),
}
ALL = ("rows", "inject", "tilespec")
BOTH = ("rows", "inject")
EAGLE = drafting("EAGLE", chain(3))
OWN_DRAFTS = (*drafting("EAGLE", chain(3), Path("{model}")), "--speculative-draft-load-format", "dummy")
"""Of layers that published models have for it, here of no use: nearly all drafts are rejected."""
TOO_MANY_NODES = (
    *("--speculative-num-steps", "2", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8"),
)
DP = (*TWO_RANKS, "--enable-dp-attention", "--dp-size", "2")
GPU = ("--dtype", "bfloat16", "--attention-backend", "triton", *SMALL, "--mem-fraction-static", "0.9")
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
SERVES = "serves"
STATES = ("--max-mamba-cache-size", "128", "--max-running-requests", "16")
COSINE = {"Qwen3-Next": 0.99, "Qwen3.5": 0.99}
"""The least that is right on a GPU, in bfloat16; of other models 0.999. Without a GPU all is float32: 0.99999."""
_CPU_HOST = "host-cache-on-cpu"
"""A fault of the tests, by which SGLang alone keeps prefixes in the host's memory without a GPU."""
_ANSWER_SECONDS = 60.0
_LOG_LINES = 400
_READY = "The server is fired up and ready to roll"
_NOISE = re.compile(r"^(\[[^]]*\]\s*)+")


@dataclass(frozen=True)
class Trial:
    """An option of a table.

    Attributes:
        option: as the table names it.
        options: with what it is tried; by default itself.
        features: whose tables have it.
        model: "dense", "experts", or an architecture of the tests.
        gpus: how many it needs.
        env: environment of both servers.
        temperature: of the canaries.
        restarts: whether ours is asked twice, by two servers after each other that share a folder of stored KV; what
            the second one answers counts.
    """

    option: str
    options: tuple[str, ...] | None = None
    features: tuple[str, ...] = ("rows",)
    model: str = "dense"
    gpus: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    temperature: float = 0
    restarts: bool = False

    @property
    def tried(self) -> tuple[str, ...]:
        """Options of both servers."""
        return (self.option,) if self.options is None else self.options


def _beside_state() -> list[Trial]:
    options: dict[str, tuple[str, ...]] = {
        "nothing": (),  # what is refused is compared with this
        # So few slots that prefixes come back from the host's memory.
        "--enable-hierarchical-cache": (*HOST_CACHE, "--max-mamba-cache-size", "24", "--enable-metrics"),
        "--speculative-algorithm EAGLE": OWN_DRAFTS,
        "--speculative-algorithm EAGLE3": drafting("EAGLE3", chain(3)),
        "--speculative-algorithm STANDALONE": drafting("STANDALONE", chain(3)),
        "--speculative-algorithm NGRAM": NGRAM,
        "--pp-size": ("--pp-size", "2"),
        "--enable-dp-attention": DP,
        "--enable-streaming-session": ("--enable-streaming-session",),
        "--enable-linear-replayssm": (
            *("--enable-linear-replayssm", "--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule"),
        ),
        "--enable-linear-replayssm-spec": ("--enable-linear-replayssm-spec", *NGRAM),
        "--enable-int8-mamba-checkpoint": ("--enable-int8-mamba-checkpoint",),
        "--enable-mamba-cache-stochastic-rounding": (
            *("--enable-mamba-cache-stochastic-rounding", "--mamba-ssm-dtype", "float16"),
            *("--mamba-backend", "flashinfer"),
        ),
    }
    two = {"--pp-size", "--enable-dp-attention"}
    # Of the models with state that take vectors; Qwen3-Next has one stage alone, too.
    return [
        Trial(f"{name} beside state", (*STATES, *given), BOTH, "Qwen3.5", gpus=1 + (name in two))
        for name, given in options.items()
    ]


PREFILL = ("--disaggregation-transfer-backend", "fake")
EXPERTS = (*TWO_RANKS, "--ep-size", "2", "--moe-a2a-backend")
FA3 = ("--attention-backend", "fa3")
CP = (*TWO_RANKS, "--attn-cp-size", "2", *FA3)
TRITON_DRAFTS = ("--speculative-draft-attention-backend", "triton")
STAGES_AND_DRAFTS = {"SGLANG_ENABLE_PP_SPEC": "1"}
STORAGE = (
    *(*HOST_CACHE, "--enable-metrics", "--hicache-storage-backend", "file"),
    # Prompts of the canaries are shorter than what SGLang would look for, and it would not wait for it.
    *("--hicache-storage-backend-extra-config", '{"prefetch_threshold": 1}'),
    *("--hicache-storage-prefetch-policy", "wait_complete"),
)
TRIALS = [
    Trial("--hicache-storage-backend", STORAGE, BOTH, restarts=True),
    Trial("--enable-hierarchical-cache", (*HOST_CACHE, "--enable-metrics"), BOTH),
    Trial("--detokenizer-worker-num", ("--detokenizer-worker-num", "2")),
    Trial("--kv-events-config", ("--kv-events-config", '{"publisher": "zmq", "endpoint": "tcp://*:{port}"}'), ALL),
    Trial("--enable-lmcache", None, BOTH),
    Trial("--enable-flexkv", None, BOTH),
    Trial("--enable-hisparse", None, ("rows", "tilespec")),
    Trial("--disaggregation-mode", ("--disaggregation-mode", "prefill", *PREFILL), ALL),
    Trial("--disaggregation-mode decode", ("--disaggregation-mode", "decode", *PREFILL), ALL),
    Trial("--encoder-only", None, ALL, "Qwen3-VL"),
    Trial(
        "--pp-size with --speculative-algorithm",
        ("--pp-size", "2", *EAGLE),
        model="Qwen3",
        gpus=2,
        env=STAGES_AND_DRAFTS,
    ),
    Trial("--pp-size", ("--pp-size", "2"), ("inject",), "Qwen3", 2),
    Trial("--pp-size above 1", ("--pp-size", "2"), ("tilespec",), "Qwen3", 2, STAGES_AND_DRAFTS),
    Trial("--enable-dp-attention with --speculative-algorithm", (*DP, *EAGLE), model="experts", gpus=2),
    Trial("--enable-dp-attention with --speculative-algorithm, fa3", (*DP, *EAGLE, *FA3), model="experts", gpus=2),
    Trial("--enable-dp-attention", DP, ALL, "experts", 2),
    Trial("--enable-hierarchical-cache with --speculative-algorithm", (*HOST_CACHE, *EAGLE), BOTH),
    Trial("--dcp-size", (*TWO_RANKS, "--dcp-size", "2"), BOTH, gpus=2),
    Trial("--dcp-size above 1", (*TWO_RANKS, "--dcp-size", "2", *FA3), ("tilespec",), gpus=2),
    Trial("--attn-cp-size", CP, ALL, "Qwen3", 2),
    Trial("--enable-prefill-cp", (*CP, "--enable-prefill-cp", "--cp-strategy", "zigzag"), ALL, "Qwen3", 2),
    # With FlashAttention 3 alone, SGLang 0.5.17 has no graphs of draft-extends.
    Trial("--attn-cp-size, triton drafts", (*CP, *TRITON_DRAFTS), ("tilespec",), "Qwen3", 2),
    Trial(
        "--enable-prefill-cp, triton drafts",
        (*CP, "--enable-prefill-cp", "--cp-strategy", "zigzag", *TRITON_DRAFTS),
        ("tilespec",),
        "Qwen3",
        2,
    ),
    Trial(
        "--enable-prefill-cp with --speculative-algorithm",
        (*CP, "--enable-prefill-cp", "--cp-strategy", "zigzag", *EAGLE),
        model="Qwen3",
        gpus=2,
    ),
    Trial("--enable-two-batch-overlap", ("--enable-two-batch-overlap", *DP), ALL, "DeepSeek-V3", 2),
    Trial(
        "--enable-pdmux", ("--enable-pdmux", "--chunked-prefill-size", "-1", "--disable-overlap-schedule", *FA3), ALL
    ),
    Trial("--dllm-algorithm", ("--dllm-algorithm", "LowConfidence"), BOTH),
    *(
        Trial(f"--speculative-algorithm {name}", ("--speculative-algorithm", name))
        for name in ("DFLASH", "DSPARK", "UNO")
    ),
    Trial("--speculative-algorithm NGRAM", NGRAM, ("inject",)),
    Trial("--enable-multi-layer-eagle", ("--enable-multi-layer-eagle", *EAGLE), ALL),
    Trial("--is-embedding", None, ALL),
    Trial("--enable-unified-memory", None, BOTH, "Qwen3.5"),
    Trial("--enable-unified-memory windows", ("--enable-unified-memory",), ("tilespec",), "Gemma 3"),
    Trial("--radix-cache-backend", ("--radix-cache-backend", "flexkv"), BOTH),
    Trial("--prefill-only-disable-kv-cache"),
    *(
        Trial(f"--moe-a2a-backend {name}", (*EXPERTS, name), ALL, "experts", 2)
        for name in ("mooncake", "nixl", "megamoe", "flashinfer_megamoe")
    ),
    Trial(
        "--moe-a2a-backend deepep_v2",
        (*EXPERTS, "deepep_v2", "--chunked-prefill-size", "128", "--max-prefill-tokens", "128"),
        ALL,
        "experts",
        2,
    ),
    Trial(
        "--moe-a2a-backend deepep",
        (*EXPERTS, "deepep", "--deepep-mode", "normal"),
        ALL,
        "Qwen3-MoE",
        2,
        {"EP_SUPPRESS_NCCL_CHECK": "1", "SGL_DG_USE_NVRTC": "1"},
    ),
    Trial("--moe-a2a-backend mori", (*EXPERTS, "mori", "--chunked-prefill-size", "2048"), ALL, "experts", 2),
    Trial(
        "--moe-a2a-backend pplx",
        (*EXPERTS, "pplx", *DP[len(TWO_RANKS) :], "--chunked-prefill-size", "128"),
        ALL,
        "experts",
        2,
    ),
    Trial(
        "--moe-a2a-backend flashinfer",
        (*EXPERTS, "flashinfer", *DP[len(TWO_RANKS) :], "--moe-runner-backend", "flashinfer_cutlass"),
        ALL,
        "Qwen3-MoE",
        2,
    ),
    Trial(
        "--speculative-moe-a2a-backend",
        (*EXPERTS[:-1], "--speculative-moe-a2a-backend", "deepep"),
        ("tilespec",),
        "experts",
        2,
    ),
    Trial(
        "--nnodes",
        (*TWO_RANKS, "--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "127.0.0.1:{port}"),
        ALL,
        gpus=2,
    ),
    Trial("nothing with windows", ("--enable-metrics",), model="Gemma 3"),
    Trial("--swa-prefix-tails", ("--swa-prefix-tails", "1"), model="Gemma 3"),
    Trial("--enable-decoder-swa-bounded-replay", model="Gemma 3"),
    Trial("--elastic-ep-backend", (*EXPERTS[:-1], "--elastic-ep-backend", "mooncake"), ("rows",), "experts", 2),
    Trial("--tokenizer-worker-num", ("--tokenizer-worker-num", "2"), BOTH),
    Trial("--smg-grpc-mode", None, BOTH),
    Trial("--grpc-port", ("--grpc-port", "{port}"), BOTH),
    Trial("--use-ray", None, BOTH),
    Trial("--enable-layernorm-sp", ("--enable-layernorm-sp", *TWO_RANKS), BOTH, "Qwen3", 2),
    Trial("--enable-kv-cache-sharding", ("--enable-kv-cache-sharding", *TWO_RANKS), ("rows", "tilespec"), gpus=2),
    Trial("--enable-unified-cache-external-linker", None, BOTH),
    Trial("--enable-pd-role-switch", ("--enable-pd-role-switch", "--disaggregation-mode", "prefill", *PREFILL), BOTH),
    Trial(
        "--enable-return-aux-hidden-states",
        ("--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3"),
        BOTH,
    ),
    Trial(
        "--enable-return-aux-hidden-states drafts",
        ("--enable-return-aux-hidden-states", *drafting("EAGLE3", chain(3))),
        ("tilespec",),
    ),
    *_beside_state(),
    Trial(
        "--enable-attn-tp-input-scattered",
        ("--enable-attn-tp-input-scattered", *TWO_RANKS),
        ("inject",),
        "DeepSeek-V3",  # others never scatter
        2,
    ),
    Trial("--speculative-num-draft-tokens", drafting("EAGLE", TOO_MANY_NODES), ("tilespec",)),
    Trial("--speculative-adaptive", None, ("tilespec",)),
    Trial("--enable-deterministic-inference", None, ("tilespec",)),
    Trial("--enable-custom-logit-processor", None, ("tilespec",)),
    Trial("--enable-lora", ("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj"), ("tilespec",)),
    Trial("--disable-cuda-graph", None, ("tilespec",)),
    Trial("--disable-cuda-graph-padding", None, ("tilespec",)),
    Trial("--debug-cuda-graph", ("--debug-cuda-graph", "--cuda-graph-backend-decode=breakable"), ("tilespec",)),
    Trial("--boundary-reduction", ("--boundary-reduction", "rs", *DP), BOTH, "experts", 2),
    Trial("nothing with experts", ("--enable-metrics",), ("inject",), "experts"),
    Trial("--enable-paged-experts", ("--enable-paged-experts", "--paged-experts-num-resident", "4"), ALL, "experts"),
    Trial("--enable-nvidia-megakernel"),
    Trial("--enable-amd-monokernel"),
    Trial(
        "--enable-megamoe-for-layernorm-sp",
        ("--enable-megamoe-for-layernorm-sp", "--enable-layernorm-sp", *TWO_RANKS),
        ("rows",),
        "experts",
        2,
    ),
    Trial(
        "--speculative-use-block-verification", ("--speculative-use-block-verification", *EAGLE), ALL, temperature=0.8
    ),
    Trial(
        "--prefill-decode-interval", ("--prefill-decode-interval", "2", "--prefill-decode-interval-min-bs", "1"), BOTH
    ),
    Trial("--enable-linker-mla-dedup"),
    Trial("--enable-encoder-swa-bounded-replay", model="Gemma 3"),
    Trial(
        "--enable-watermark",
        ("--enable-watermark", "--watermark-config", '{"key": "5", "default_enabled": true}'),
        ALL,
        temperature=0.8,
    ),
    Trial("--enable-http-worker-reuseport", ("--enable-http-worker-reuseport", "--tokenizer-worker-num", "2")),
    Trial("--enable-response-store", None, ALL),
    Trial("models with Mamba or linear-attention state", (*STATES, *OWN_DRAFTS), ("tilespec",), "Qwen3.5"),
    Trial("models whose layers all have windows", ("--max-total-tokens", "700"), model="windows"),
    *(
        Trial(name, (), features, env={name: value})
        for name, value, features in (
            ("SGLANG_RUST_SERVER", "1", BOTH),
            ("SGLANG_EXPERIMENTAL_CPP_RADIX_TREE", "1", BOTH),
            ("SGLANG_ENABLE_OVERLAP_PLAN_STREAM", "1", ("tilespec",)),
            ("SGLANG_SIMULATE_ACC_LEN", "2", ("tilespec",)),
            ("SGLANG_ENABLE_METADATA_GLUE_GRAPH", "1", ("tilespec",)),
        )
    ),
]


class Models:
    """Folders and references, made once."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._made: dict[str, tuple[Path, HuggingFace]] = {}

    def get(self, name: str) -> tuple[Path, HuggingFace]:
        """The folder that is served and its reference."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(name)
            return self._made[name]

    def _make(self, name: str) -> tuple[Path, HuggingFace]:
        if name in {"dense", "experts"}:
            folder = TINY if name == "dense" else TINY_MOE
            return folder, HuggingFace(folder)
        if name == "windows":
            mellum = ARCHITECTURES["Mellum"]
            folder = made(self._home / name, mellum.kind, **mellum.fields | {"layer_types": ["sliding_attention"] * 4})
            return folder, HuggingFace(folder)
        served, reference = make(self._home / name.replace(" ", "-"), name)
        return served, HuggingFace(reference)


def why(error: ServerStartError) -> str:
    """The line of a log by which a start ended."""
    lines = [_NOISE.sub("", line).strip() for line in error.log.splitlines()[-_LOG_LINES:]]
    refusals = [line for line in lines if "refusing to start" in line]
    errors = [line for line in lines if re.match(r"^[\w.]*(Error|Exception|SystemExit|Interrupt)\b", line)]
    # Of a chain of exceptions the first is the cause, but for SGLang's own about a child that has ended.
    said = (
        refusals
        or [line for line in errors if not re.search("ChildProcess|Connection refused|Max retries", line)]
        or lines[-1:]
        or ["nothing"]
    )
    if error.exit_code is None and any(_READY in line for line in lines) and not any("GET /" in line for line in lines):
        return "it is ready, and answers no HTTP"
    limit = "" if error.exit_code is not None else "not ready in time; "
    return limit + said[0][:300]


def ask_once(url: str, **requested: Any) -> str:
    """One answer: `SERVES`, or what came instead."""
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    try:
        body = {"input_ids": list(range(8, 40)), "sampling_params": sampling, **requested}
        answer = httpx.post(f"{url}/generate", json=body, timeout=_ANSWER_SECONDS)
    except httpx.HTTPError as error:
        return f"no answer: {type(error).__name__}"
    found = answer.json() if answer.status_code == 200 else {}
    return SERVES if len(found.get("output_ids", ())) == 4 else f"{answer.status_code}: {answer.text[:200]}"


def ask_stock(server: Server) -> str:
    """One request, and then many at once."""
    if (first := ask_once(server.url)) != SERVES:
        return first
    with ThreadPoolExecutor(16) as threads:
        said = list(
            threads.map(lambda seed: ask_once(server.url, input_ids=list(range(seed, 60 + seed))), range(8, 72))
        )
    return max(said, key=lambda one: one != SERVES)


def ask_ours(server: Server, hf: HuggingFace, feature: str, least: float, temperature: float) -> str:
    """Canaries, a second turn of each, and fingerprints: "exact", or what is wrong."""
    if (first := ask_once(server.url, return_embedding=True)) != SERVES:
        return f"fails: {first}"
    drawn = canaries(60, vocabulary=1000, seed=5, injecting=0.5 if feature == "inject" else 0.0)
    flock = [replace(canary, temperature=temperature) for canary in drawn]
    answers = fly(server.url, flock, at_once=16)
    turns = [
        replace(canary, prompt=(*canary.prompt, *answer["output_ids"], *range(9, 14)))
        for canary, answer in zip(flock, answers, strict=True)
        if answer is not None
    ]
    verdicts = judge(flock, answers, hf) + judge(turns, fly(server.url, turns, at_once=16), hf)
    requested = 2 * sum(canary.options is not None for canary in flock)
    problems = [verdict.problem for verdict in verdicts if verdict.problem]
    wrong = [verdict.cosine for verdict in verdicts if not verdict.problem and not verdict.cosine >= least]
    if problems or wrong:
        cached = sum(verdict.cached > 0 for verdict in verdicts)
        example = f"; {problems[0][:160]}" if problems else f"; cosine {min(wrong):.6f}"
        counts = f"{len(wrong)} of {requested} vectors wrong, {len(problems)} missing ({cached} prompts cached)"
        return f"{counts}{from_host(server)}{example}"
    if feature == "rows":
        prove_and_verify(server, code_and_noise(hf.tokenizer, seed=5))
    least_cosine = min(verdict.cosine for verdict in verdicts)
    return f"exact: {requested} vectors, least cosine {least_cosine:.6f}{from_host(server)}"


_COUNTED = {
    "sglang:load_back_tokens_total": "tokens from the host's memory",
    "sglang:prefetched_tokens_total": "tokens from storage",
}


def from_host(server: Server) -> str:
    """How much came back from the host's memory and from storage, where the server says it."""
    with suppress(httpx.HTTPStatusError):  # without --enable-metrics there is no such route
        found = {sample.name: sample.value for sample in metrics(server)}
        return "".join(f"; {found[name]:.0f} {what}" for name, what in _COUNTED.items() if found.get(name))
    return ""


class Place(NamedTuple):
    """What all trials have in common.

    Attributes:
        models: folders and references.
        logs: the folder of the servers' logs.
        seconds: how long a start may take.
        make: makes a server.
    """

    models: Models
    logs: Path
    seconds: float
    make: Callable[..., Server]


def run(trial: Trial, number: int, place: Place) -> dict[str, Any]:
    """The stock server, and ours with each feature; with TileSpec, both draft."""
    folder, hf = place.models.get(trial.model)
    options, env = environment_of(trial, number)
    options = tuple(option.replace("{model}", str(folder)) for option in options)
    line: dict[str, Any] = {"option": trial.option, "options": trial.tried, "model": trial.model}
    drafts = () if "--speculative-algorithm" in options else EAGLE
    for feature in trial.features:
        more = drafts if feature == "tilespec" else ()
        stock = f"stock{' with drafts' if more else ''}"
        if stock not in line:
            off = {"TESSERA_DISABLE": "1"} if gpu_present() else {}  # without a GPU it does not start without us
            started = Start(folder, (*options, *more), env | off, f"{number}-{stock}", place)
            line[stock] = attempt(started, ask_stock)
        if line[stock] == SERVES:
            faults = env["TESSERA_TEST_FAULT"].split()
            if has_host_rows():
                faults = [fault for fault in faults if fault != _CPU_HOST]  # our own is on
            permitted = {"TESSERA_TEST_FAULT": " ".join((*faults, "permit"))}
            given = (*options, *FEATURES[feature], *more)
            started = Start(folder, given, env | permitted, f"{number}-{feature}", place)
            least = COSINE.get(trial.model, 0.999) if gpu_present() else 0.99999
            ask = partial(ask_ours, hf=hf, feature=feature, least=least, temperature=trial.temperature)
            line |= twice(started, ask, feature) if trial.restarts else {feature: attempt(started, ask)}
    return line


def has_host_rows() -> bool:
    """Whether our part of the host's memory is, with this SGLang."""
    return "cpu_host_cache" not in support.absent(versions.installed() or support.DEFAULT)


def twice(start: Start, ask: Callable[[Server], str], feature: str) -> dict[str, str]:
    """What came of a server that stores KV in an empty folder, and of another one that finds it there."""
    with tempfile.TemporaryDirectory() as folder:
        start = start._replace(env={**start.env, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": folder})
        return {f"{feature} before the restart": attempt(start, ask), feature: attempt(start, ask)}


def environment_of(trial: Trial, number: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Options and environment of both servers of a trial."""
    options = tuple(option.replace("{port}", str(28000 + number)) for option in trial.tried)
    env = {"TESSERA_TEST_FAULT": "", **trial.env}
    if not gpu_present():
        if trial.model in COSINE:  # snapshots of states need a GPU; else SGLang rounds them to bfloat16
            options, env = (*options, *STATES_ON_A_CPU), env | FLOAT32_STATES
        ranks = RANKS_ON_CPUS if "--tp-size" in options else STAGES_ON_CPUS
        if "--enable-dp-attention" in options:
            env["TESSERA_TEST_FAULT"] = "pad-plain-attention unpinned"
        if "--enable-hierarchical-cache" in options:
            env["TESSERA_TEST_FAULT"] = f"{_CPU_HOST} unpinned"
        return options, env | (ranks if trial.gpus > 1 else {})
    options, all_of_them = (*GPU, *options), ",".join(map(str, range(torch.cuda.device_count())))
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", all_of_them).split(",")
    env["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"
    if trial.gpus == 1:
        env["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    elif len(gpus) == 1:  # both ranks on it
        env |= {"TESSERA_TEST_FAULT": "one-gpu", "NCCL_SOCKET_IFNAME": "lo"}
        options = (*options, "--disable-custom-all-reduce")
    return options, env


class Start(NamedTuple):
    """How a server is started."""

    folder: Path
    options: tuple[str, ...]
    env: Mapping[str, str]
    name: str
    place: Place

    @property
    def log(self) -> Path:
        """The file of its log."""
        return self.place.logs / f"{self.name}.log"


@contextmanager
def other_node(start: Start) -> Iterator[None]:
    """With ``--nnodes 2``, the launcher of the second node, which never answers."""
    if "--nnodes" not in start.options:
        yield
        return
    port = port_of(reserve_port())
    env = environment(start.env) | ({"CUDA_VISIBLE_DEVICES": "1"} if gpu_present() else {})
    with start.log.with_suffix(".node-1.log").open("w") as log:
        node = subprocess.Popen(
            command(start.folder, port, (*start.options, "--node-rank", "1")),
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def attempt(start: Start, ask: Callable[[Server], str]) -> str:
    """Start, ask, stop: what came of it."""
    try:
        server = start.place.make(
            start.folder, *start.options, env=start.env, log_path=start.log, start_seconds=start.place.seconds
        )
        with other_node(start), server:
            try:
                return ask(server)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
                gone = "" if server.exit_code is None else " (the server has ended)"
                return f"fails: {type(error).__name__}: {str(error)[:240]}{gone}"
    except ServerStartError as error:
        return f"does not start: {why(error)}"


def main() -> None:
    """All trials, several side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("refused.jsonl"))
    parser.add_argument("--only", nargs="+", help="parts of names; $ is the end of one")
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=list(FEATURES))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--start-seconds", type=float, default=300)
    options = parser.parse_args()
    torch.set_num_threads(2)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    chosen = [trial for trial in TRIALS if not options.only or any(part in f"{trial.option}$" for part in options.only)]
    chosen = [
        replace(trial, features=tuple(one for one in trial.features if one in options.features)) for trial in chosen
    ]
    logs = options.out.parent / "refused-logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (
        options.out.open("a") as out,
        tempfile.TemporaryDirectory() as home,
        Interpreter() as interpreter,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        print(json.dumps(provenance()), file=out, flush=True)
        # Without a GPU, forks of a process that has imported SGLang, which takes a minute of two cores.
        make = Server if gpu_present() else partial(ForkedServer, interpreter)
        place = Place(Models(Path(home)), logs, options.start_seconds, make)

        def run_one(numbered_trial: tuple[int, Trial]) -> None:
            line = run(numbered_trial[1], numbered_trial[0], place)
            print(json.dumps(line), file=out, flush=True)
            print({key: value for key, value in line.items() if key not in {"options", "model"}}, flush=True)

        list(pool.map(run_one, enumerate(chosen)))


if __name__ == "__main__":
    main()
