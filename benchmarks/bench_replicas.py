r"""How much of their prompts 1, 2 and 4 servers find in their caches, by the way in which requests are distributed.

Searches run side by side, as provers' do: each grows a tree, whose next prompt is one of its earlier prompts and a step
more. The servers' KV pools are small, so that one server cannot keep all trees, and four can. The ways:

  spread        nginx (examples/deploy/nginx.conf), without a header
  x-session     the same, with one X-Session for each search
  round_robin   SGLang's router
  cache_aware   the same with this policy

Each way starts with empty caches. Tokens are counted, not seconds: the servers share this machine. Example:

  python benchmarks/bench_replicas.py --out benchmarks/results/replicas.jsonl
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from fronts import nginx, nginx_version
from provenance import provenance, show
from rig import Fleet
from tessera.launching.server import Server
from tessera_testing.endpoints import flush_cache
from tessera_testing.free_port import free_port
from tessera_testing.router import router
from tessera_testing.tiny import TINY

SERVERS = (1, 2, 4)
SEARCHES = 16
AT_ONCE = 8
"""Searches that run at a time; when one's request is answered, another's is sent."""
STEPS = 40
PROBLEM_TOKENS, STEP_TOKENS, NEW_TOKENS = 200, 24, 4
POOL_TOKENS = 8192
"""A tree has some 200 + 40 x 24 = 1,160 tokens, all of them 18,560."""
FIRST_ID, LAST_ID = 8, 1000


class Way(NamedTuple):
    """A proxy, and whether a search's requests name it."""

    front: Callable[..., AbstractContextManager[str]]
    named: bool


WAYS = {
    "spread": Way(nginx, named=False),
    "x-session": Way(nginx, named=True),
    "round_robin": Way(router, named=False),
    "cache_aware": Way(partial(router, policy="cache_aware"), named=False),
}


class Search:
    """A tree of prompts. The same seed gives the same tree."""

    def __init__(self, seed: int) -> None:
        self.name = f"search-{seed}"
        self.chooser = random.Random(seed)
        self.states = [self._tokens(PROBLEM_TOKENS)]

    def grow(self) -> list[int]:
        """The next state: a step more than one of the last few, or at times than an old one."""
        recent = self.states[-4:] if self.chooser.random() < 0.8 else self.states
        state = self.chooser.choice(recent) + self._tokens(STEP_TOKENS)
        self.states.append(state)
        return state

    def _tokens(self, count: int) -> list[int]:
        return [self.chooser.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def measured(url: str, named: bool) -> dict[str, Any]:
    """All searches to their end. Each step asks for its prompt's continuation."""
    searches = [Search(seed) for seed in range(SEARCHES)]
    found = {"prompt_tokens": 0, "cached_tokens": 0}
    with httpx.Client(base_url=url, timeout=600) as client, ThreadPoolExecutor(AT_ONCE) as threads:

        def step(search: Search) -> dict[str, Any]:
            sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0}
            headers = {"X-Session": search.name} if named else {}
            body = {"input_ids": search.grow(), "sampling_params": sampling}
            response = client.post("/generate", json=body, headers=headers)
            meta: dict[str, Any] = response.raise_for_status().json()["meta_info"]
            return meta

        for _ in range(STEPS):
            for meta in threads.map(step, searches):
                for key in found:
                    found[key] += meta[key]
    return found | {"cached_share": round(found["cached_tokens"] / found["prompt_tokens"], 4)}


def main() -> int:
    """Measure each way with each number of servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here")
    options = parser.parse_args()
    versions = {"nginx": nginx_version(), "sglang-router": version("sglang-router")}
    args = ("--enable-return-hidden-states", "--max-total-tokens", str(POOL_TOKENS))
    with options.out.open("w") as out, Fleet() as fleet:
        show({"kind": "provenance", **versions, **provenance()}, out)
        servers = [Server(TINY, *args, port=free_port()) for _ in range(max(SERVERS))]
        for one in servers:
            fleet.start(one)
        for one in servers:
            one.wait_ready()
        for count in SERVERS:
            for name, way in WAYS.items():
                for one in servers[:count]:
                    flush_cache(one)
                with way.front(*(one.url for one in servers[:count])) as front:
                    found = measured(front, way.named)
                show({"kind": "replicas", "servers": count, "way": name, **found}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
