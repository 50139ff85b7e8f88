"""Answers lost or wrong behind nginx, Envoy and SGLang's router while both servers are killed and started again.

Two CPU servers of the tiny model, the proxy, and clients that ask all the time. One server is killed (SIGKILL) and
started again, then the other. Each answer is compared with Hugging Face. A request that fails is sent again, as
`tessera.client` does; it is lost if it fails for two minutes. nginx and Envoy get their
configurations in examples/deploy with other addresses. Example:

  python benchmarks/bench_proxy_killed.py --out benchmarks/results/proxy-killed.jsonl
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil

from fronts import envoy, envoy_version, nginx, nginx_version
from provenance import provenance, show
from tessera.launching.server import Server
from tessera_testing.free_port import free_port
from tessera_testing.reference import HuggingFace, Vector, relative_error
from tessera_testing.router import router
from tessera_testing.tiny import TINY

CLIENTS = 6
GIVE_UP_SECONDS = 120.0
FLOAT32_ERROR = 1e-5
Body = dict[str, Any]
ROUTES = ("/generate", "/v1/completions", "/v1/embeddings")


class Proxy(NamedTuple):
    """A proxy, its version, and the routes on which our fields pass."""

    front: Callable[..., AbstractContextManager[str]]
    version: Callable[[], str]
    paths: tuple[str, ...] = ROUTES


PROXIES = {
    "nginx": Proxy(nginx, nginx_version),
    "envoy": Proxy(envoy, envoy_version),
    "sglang-router": Proxy(router, partial(version, "sglang-router"), ROUTES[1:]),
}


class Load:
    """Asks until it is told to stop, and counts."""

    def __init__(self, url: str, bodies: list[tuple[str, Body, Vector]]) -> None:
        self.url = url
        self.bodies = bodies
        self.over = threading.Event()
        self.counting = threading.Lock()
        self.counts: Counter[str] = Counter(answered=0, wrong=0, lost=0)

    def run(self, first: int) -> None:
        """One client."""
        at = first
        with httpx.Client(base_url=self.url, timeout=GIVE_UP_SECONDS) as client:
            while not self.over.is_set():
                path, body, expected = self.bodies[at % len(self.bodies)]
                answer = self.answer(client, path, body)
                if answer is None:
                    self.count("lost")
                else:
                    self.count("answered")
                    if not relative_error(vector(path, answer), expected) <= FLOAT32_ERROR:  # NaN too
                        self.count("wrong")
                at += CLIENTS

    def count(self, what: str) -> None:
        """One more; threads take turns."""
        with self.counting:
            self.counts[what] += 1

    def answer(self, client: httpx.Client, path: str, body: Body) -> Any:
        """The first good answer, None if there is none in time."""
        end = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < end:
            try:
                response = client.post(path, json=body)
                if response.is_success:
                    return response.json()
                self.count(f"tried again: {response.status_code}")
            except httpx.TransportError as error:
                self.count(f"tried again: {type(error).__name__}")
            time.sleep(0.2)
        return None


def vector(path: str, answer: Any) -> Vector:
    """The vector of an answer; NaN if it has none."""
    try:
        if path == "/generate":
            found = answer["meta_info"]["embedding"]
        else:
            found = answer["data" if path == "/v1/embeddings" else "choices"][0]["embedding"]
        return np.array(found, dtype=np.float32)
    except (LookupError, TypeError, ValueError):
        return np.array([np.nan])


def bodies(hf: HuggingFace, paths: tuple[str, ...]) -> list[tuple[str, Body, Vector]]:
    """Requests, each with the vector that must come: the mean of its prompt."""
    made: list[tuple[str, Body, Vector]] = []
    for i in range(40):
        text = f"class Stack{i}:\n    def push(self, x):\n"
        expected = hf.pooled(hf.tokenizer(text)["input_ids"], [], "mean", "prompt")
        generating = {"text": text, "sampling_params": {"max_new_tokens": 4}, "return_embedding": True}
        body: dict[str, Body] = {
            "/generate": generating,
            "/v1/completions": {"model": "", "prompt": text, "max_tokens": 4, "return_embedding": True},
            "/v1/embeddings": {"model": "", "input": text},
        }
        made += [(path, body[path], expected) for path in paths]
    return made


def measured(servers: list[Server], load: Load) -> Body:
    """Kill and restart each server under load."""
    with ThreadPoolExecutor(CLIENTS) as threads:
        running = [threads.submit(load.run, i) for i in range(CLIENTS)]
        try:
            time.sleep(5)
            for i, one in enumerate(servers):
                psutil.Process(one.pid).kill()
                time.sleep(3)
                one.stop()
                servers[i] = Server(TINY, "--enable-return-hidden-states", port=one.port)
                servers[i].start()
                servers[i].wait_ready()
                time.sleep(10)  # until the proxy knows
        finally:
            load.over.set()
        for one_client in running:
            one_client.result()
    return dict(load.counts)


def main() -> int:
    """Run it, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--proxies", nargs="+", default=list(PROXIES), choices=PROXIES)
    options = parser.parse_args()
    hf = HuggingFace(TINY)
    versions = {name: PROXIES[name].version() for name in options.proxies}
    servers = [Server(TINY, "--enable-return-hidden-states", port=free_port()) for _ in range(2)]
    with options.out.open("w") as out:
        show({"kind": "provenance", **versions, **provenance()}, out)
        try:
            for one in servers:
                one.start()
            for one in servers:
                one.wait_ready()
            for name in options.proxies:
                proxy = PROXIES[name]
                with proxy.front(*(one.url for one in servers)) as url:
                    counts = measured(servers, Load(url, bodies(hf, proxy.paths)))
                show({"kind": "proxy-killed", "proxy": name, "paths": proxy.paths, **counts}, out)
        finally:
            for one in servers:
                one.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
