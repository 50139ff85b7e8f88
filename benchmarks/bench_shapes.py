r"""Models of the shapes that people serve, with dummy weights: what embeddings on every request cost beside plain ones.

Two servers, stock and ours, share one GPU, with SGLang's defaults but for memory. Each shape has its published sizes;
some have fewer layers, so that two fit. Before the loads, embeddings are checked: prompts under load have those that
they have while the server is idle, and no other's. Loads are mixed traffic as in `bench_steady.py`, or waves of equal
requests as in `bench_embeddings.py`: batches of waves are the same on both servers, and their ratios spread by 1 %, not
by 10. One JSON line for each start and load: our throughput with an embedding on every request, relative to the stock
server's without, median and standard error of the rounds, both servers' tokens per second, what each says itself of the
batches in which all clients decode (kernels that are chosen at a start move the first, and not the second), and the row
store's bytes over the KV cache's.

  python benchmarks/bench_shapes.py qwen3-8b gemma-3-12b --out shapes.jsonl --loads 64-2048/64-192/32 256/128/32

With --folders DIR it only writes their folders, which any machine can. Runs side by side on one GPU start their servers
together, and measure one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import shlex
import shutil
import signal
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import httpx
import numpy as np

from bench_steady import EMBED, Mix, Replayed, lengths_of, mix_of, replay_mix
from frozen import freeze
from load import Load, Measured, load_of, run, take_turns, turns, warm_up
from provenance import note, provenance, show
from rig import Fleet, new_server
from tessera.launching.server import Server
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import fresh_prompt
from tessera_testing.tiny import TINY

SERVER = (
    *("--load-format", "dummy", "--dtype", "bfloat16", "--sleep-on-idle"),  # each waits for its turn without a core
    *("--mem-fraction-static", "0.9", "--max-total-tokens", "65536"),
)
FOLDER = Path("/tmp/shapes")  # noqa: S108 - a borrowed machine
CANARIES = 24
BESIDE = Load(256, 128, 32, seconds=1.0)
"""What is sent beside them: one wave."""
CASES: dict[str, dict[str, Any]] = {"stock": {}, "ours": EMBED}


class Shape(NamedTuple):
    """A published model.

    Attributes:
        kind: of transformers' configuration.
        fields: of it, where its defaults are another model's.
        more: what published configurations say, and transformers' own do not.
        options: of both servers.
    """

    kind: str
    fields: dict[str, Any]
    more: dict[str, Any] = {}  # noqa: RUF012 - never written to
    options: tuple[str, ...] = ()


DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 1,
    "max_position_embeddings": 163840,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 40.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}
DEEPSEEK_MORE = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
FP8_BLOCKS = {"activation_scheme": "dynamic", "weight_block_size": [128, 128]}
STATES = ("--max-mamba-cache-size", "256", "--max-running-requests", "64")
SHAPES = {
    "qwen3-8b": Shape(
        "qwen3",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "max_position_embeddings": 40960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "gemma-3-12b": Shape(
        "gemma3_text",
        {
            "architectures": ["Gemma3ForCausalLM"],
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "sliding_window": 1024,
        },
    ),
    # Published with experts of MXFP4, here of bfloat16.
    "gpt-oss-20b": Shape(
        "gpt_oss", {"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 24, "num_local_experts": 32}
    ),
    # Of 61 layers 3, of which two are mixtures, of bfloat16 and not FP8: 50 GB.
    "deepseek-v3": Shape("deepseek_v3", {**DEEPSEEK, "num_hidden_layers": 3}, DEEPSEEK_MORE),
    # Of FP8, as published, 5 layers, of which four are mixtures, with kernels that need no compiler: 50 GB.
    "deepseek-v3-fp8": Shape(
        "deepseek_v3",
        {**DEEPSEEK, "num_hidden_layers": 5},
        DEEPSEEK_MORE | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", **FP8_BLOCKS}},
        ("--moe-runner-backend", "triton", "--fp8-gemm-backend", "triton"),
    ),
    # Of 48 layers 8: 28 GB. Both servers have as many states.
    "qwen3-next": Shape(
        "qwen3_next",
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "num_hidden_layers": 8,
            "max_position_embeddings": 262144,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        },
        {"full_attention_interval": 4},
        STATES,
    ),
    # With SGLang's prefill graphs its log-probabilities are wrong.
    "falcon-h1-7b": Shape(
        "falcon_h1",
        {
            "architectures": ["FalconH1ForCausalLM"],
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 44,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_d_ssm": 3072,
            "mamba_n_heads": 24,
            "mamba_d_head": 128,
            "max_position_embeddings": 262144,
        },
        {},
        (*STATES, "--cuda-graph-backend-prefill=disabled"),
    ),
}


def write(folder: Path, name: str) -> Path:
    """Write one of `SHAPES` without weights, with the tiny model's tokenizer. Returns the folder."""
    from transformers import AutoConfig

    shape = SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "dtype": "bfloat16"}
    AutoConfig.for_model(shape.kind, **ends, **shape.fields).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | shape.more, indent=2) + "\n", encoding="utf-8")
    for file in TINY.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def embedding_of(url: str, hidden: int, prompt: list[int]) -> Any:
    """The embedding of a prompt and four tokens behind it, of length 1.

    Raises:
        SystemExit: it is missing, or of another length, not finite, or zero.
    """
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
    answer = httpx.post(f"{url}/generate", json={**body, "return_embedding": True}, timeout=300).raise_for_status()
    vector = np.array(answer.json()["meta_info"]["embedding"], np.float64)
    if vector.shape != (hidden,) or not np.isfinite(vector).all() or not vector.any():
        raise SystemExit(f"no embedding of {hidden} finite numbers: {vector}")
    return vector / np.linalg.norm(vector)


def check_embeddings(server: Server, hidden: int) -> dict[str, float]:
    """Cosines of prompts' embeddings while the server is idle with those from its cache, and with those under load."""
    ask = partial(embedding_of, server.url, hidden)
    prompts = [fresh_prompt("shapes", 200 + 37 * seed, seed=seed) for seed in range(CANARIES)]
    alone = np.stack([ask(prompt) for prompt in prompts])
    cached = ask(prompts[0])
    flush_cache(server)
    with ThreadPoolExecutor(CANARIES // 2 + 1) as threads:
        load = threads.submit(run, server.url, BESIDE, EMBED, 7)
        under_load = np.stack([ask(prompts[0]), *threads.map(ask, prompts[1:])])
        load.result()
    cosines = under_load @ alone.T
    own, others = np.diag(cosines), cosines - 2 * np.eye(CANARIES)
    return {
        "cosine_cached": round(float(alone[0] @ cached), 6),
        "cosine_under_load_least": round(float(own.min()), 6),
        "cosine_of_another_greatest": round(float(others.max()), 6),
    }


def row_store(url: str) -> dict[str, Any]:
    """Bytes of the row store and of the KV cache, and what else tells starts apart."""
    info = httpx.get(f"{url}/server_info", timeout=60).raise_for_status().json()
    names = ("attention_backend", "moe_runner_backend", "page_size", "cuda_graph_backend_prefill")
    (store,) = info["tessera"]["row_stores"]
    return {"row_store": store} | {name: info.get(name) for name in names}


def measure(name: str, number: int, options: argparse.Namespace, out: TextIO) -> None:
    """Start both servers, check embeddings, replay each load; a line for each."""
    folder = write(FOLDER / name, name)
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    logs: Path = options.out.parent / "shapes-logs"
    args = [*SERVER, *SHAPES[name].options, *options.server_args]
    given = {"stock": args, "ours": [*args, *options.our_args]}
    servers = {case: new_server(case, folder, given[case], logs / f"{name}-{number}-{case}.log") for case in CASES}
    with Fleet() as fleet:
        for server in servers.values():
            fleet.start(server)
        for server in servers.values():
            server.wait_ready(options.start_seconds)
        urls = {case: server.url for case, server in servers.items()}
        about = {"shape": name, "start": number} | check_embeddings(servers["ours"], hidden) | row_store(urls["ours"])
        show(about, out)
        with (FOLDER / "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            for load in options.loads:
                said = {case: len(server.log) for case, server in servers.items()}
                found = {"shape": name, "start": number} | ratios(urls, load, options)
                rates = {case: decode_rate(server.log[said[case] :], load.clients) for case, server in servers.items()}
                show(found | {"decode_batch_tokens_per_second": rates}, out)


def decode_rate(log: str, clients: int) -> float | None:
    """Median of the tokens per second that a server logs of decode batches with all clients; None without any."""
    said = re.findall(rf"Decode batch, #running-req: {clients},.*gen throughput \(token/s\): ([0-9.]+)", log)
    return statistics.median(map(float, said)) if said else None


def ratios(urls: dict[str, str], load: Mix | Load, options: argparse.Namespace) -> dict[str, Any]:
    """Both servers take turns, with the same lengths in a round."""
    found: dict[str, list[Replayed | Measured]] = {case: [] for case in CASES}
    for case, one in _mixed(urls, load, options) if isinstance(load, Mix) else _waves(urls, load, options):
        found[case].append(one)
    rates = {case: [one.output_tokens_per_second for one in own] for case, own in found.items()}
    each = [own / plain for plain, own in zip(rates["stock"], rates["ours"], strict=True)]
    return {
        "load": str(load),
        "of_stock": round(statistics.median(each), 4),
        "standard_error": round(statistics.stdev(each) / len(each) ** 0.5, 4),
        "of_stock_each": [round(ratio, 3) for ratio in each],
        "output_tokens_per_second": {case: statistics.median(own) for case, own in rates.items()},
        "errors": sum(one.errors for own in found.values() for one in own),
        "stolen_most": max(one.stolen for own in found.values() for one in own),
    }


def _mixed(urls: dict[str, str], mix: Mix, options: argparse.Namespace) -> Iterator[tuple[str, Replayed]]:
    for number, case in turns(list(CASES), 2):  # the first requests of a size compile kernels
        lengths = lengths_of(mix, mix.clients * options.requests, f"warm-up {number}")
        replay_mix(urls[case], mix, lengths, f"warm-up {case} {number}", CASES[case])
    freeze(urls.values())
    for number, case in turns(list(CASES), options.rounds):
        lengths = lengths_of(mix, mix.clients * options.requests, f"{mix} {number}")
        yield case, replay_mix(urls[case], mix, lengths, f"{case} {number} {mix}", CASES[case])


def _waves(urls: dict[str, str], load: Load, options: argparse.Namespace) -> Iterator[tuple[str, Measured]]:
    cases = {case: (urls[case], extra) for case, extra in CASES.items()}
    request_seconds = max(warm_up(cases, load, seed) for seed in (0, len(cases)))
    for case, _, one in take_turns(cases, load, options.rounds, request_seconds):
        yield case, one


def _load(text: str) -> Mix | Load:
    """Mixed lengths are ranges."""
    return mix_of(text) if "-" in text else load_of(text)


def main() -> None:
    """Each shape, each start; or the folders alone."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    if options.folders:
        for name in options.shapes:
            print(write(options.folders / name, name))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as out:
        note(provenance() | {"server_args": [*SERVER, *options.server_args]}, out)
        for name in options.shapes:
            for number in range(options.starts):
                measure(name, number, options, out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", choices=SHAPES, help="which")
    parser.add_argument("--out", type=Path, default=Path("shapes.jsonl"), help="lines are added; server logs beside it")
    parser.add_argument("--folders", type=Path, help="write the models' folders here, and do nothing else")
    parser.add_argument(
        "--loads",
        type=_load,
        nargs="+",
        default=[_load("64-2048/64-192/32")],
        help="as bench_steady's, or PROMPT/OUTPUT/CLIENTS[/SECONDS] in waves",
    )
    parser.add_argument("--rounds", type=int, default=5, help="replays of each load (default %(default)s)")
    parser.add_argument("--requests", type=int, default=3, help="of each client in a replay (default %(default)s)")
    parser.add_argument("--starts", type=int, default=1, help="of both servers (default %(default)s)")
    parser.add_argument("--start-seconds", type=float, default=400, help="how long one may take (default %(default)s)")
    parser.add_argument("--our-args", type=shlex.split, default=[], help="more arguments of ours, in one string")
    parser.add_argument("--server-args", nargs=argparse.REMAINDER, default=[], help="more arguments of both servers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
