r"""8 states x 8 candidates: one request for all of them, against 64 requests to the same server.

Three ways, taking turns, each round with prompts that no cache has seen:

  one         Client.generate_candidates_batch(states, 8): one POST
  at_once     64 POSTs, all in flight together, from one AsyncClient
  in_a_row    64 POSTs, one after the other; once, for it takes tens of times longer

With --local FOLDER, two more, by transformers in this process, on the GPU if there is one:

  local_at_once   one generate() of all states, padded to one batch
  local_in_a_row  64 of them, one after the other; once, as in_a_row

Writes a JSON line for each measurement and prints the ratios to `one`. Without --url or SGLANG_URL it starts a server
itself. Example (dummy weights of an 8B Llama):

  python benchmarks/bench_candidates.py --model /models/8b --out benchmarks/results/candidates.jsonl -- \
      --load-format dummy --attention-backend fa3
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from provenance import note, provenance, show
from rig import serve
from tessera.client import AsyncClient, Client

FIRST_ID, LAST_ID = 8, 1000
"""Token ids of prompts; every vocabulary has them."""
STATES = 8
CANDIDATES = 8

Prompts = list[list[int]]


def one(url: str, prompts: Prompts, tokens: int) -> None:
    """One request."""
    with Client(url) as client:
        groups = client.generate_candidates_batch(prompts, CANDIDATES, max_new_tokens=tokens, ignore_eos=True)
        assert len(groups) == STATES


def at_once(url: str, prompts: Prompts, tokens: int) -> None:
    """A request for each candidate, all together."""

    async def run() -> None:
        async with AsyncClient(url) as client:
            sampled = (
                client.generate_candidates(prompt, 1, max_new_tokens=tokens, ignore_eos=True)
                for prompt in prompts
                for _ in range(CANDIDATES)
            )
            assert len(await asyncio.gather(*sampled)) == STATES * CANDIDATES

    asyncio.run(run())


def in_a_row(url: str, prompts: Prompts, tokens: int) -> None:
    """A request for each candidate, one after the other."""
    with Client(url) as client:
        for prompt in prompts:
            for _ in range(CANDIDATES):
                client.generate_candidates(prompt, 1, max_new_tokens=tokens, ignore_eos=True)


Way = Callable[[str, Prompts, int], None]
WAYS: dict[str, Way] = {"one": one, "at_once": at_once, "in_a_row": in_a_row}


def local_ways(folder: Path) -> dict[str, Way]:
    """What a program without a server does. A folder without weights gets random ones."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    with torch.device(device):
        if any(folder.glob("*.safetensors")):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        else:
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).eval()

    def generate(prompts: Prompts, tokens: int, candidates: int) -> None:
        ids = torch.tensor(prompts, device=device)
        length = {"min_new_tokens": tokens, "max_new_tokens": tokens, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        found = model.generate(ids, attention_mask=mask, do_sample=True, num_return_sequences=candidates, **length)
        assert found.shape == (len(prompts) * candidates, ids.shape[1] + tokens)

    def local_at_once(_: str, prompts: Prompts, tokens: int) -> None:
        generate(prompts, tokens, CANDIDATES)

    def local_in_a_row(_: str, prompts: Prompts, tokens: int) -> None:
        for prompt in prompts:
            for _number in range(CANDIDATES):
                generate([prompt], tokens, 1)

    return {"local_at_once": local_at_once, "local_in_a_row": local_in_a_row}


def main() -> None:
    """Measure all ways in turn, and print their ratios."""
    options = _options()
    with ExitStack() as stack, options.out.open("w") as out:
        url = options.url or serve(stack, "ours", options.model, options.server_args, options.out.with_suffix(".log"))
        note(provenance() | {"server_args": options.server_args}, out)
        ways = WAYS | (local_ways(options.local) if options.local else {})
        seconds = _measure(url, ways, options, out)
        for way in ways:
            rounds = len(seconds[way])
            ratios = [own / first for own, first in zip(seconds[way], seconds["one"][:rounds], strict=True)]
            line = {
                "way": way,
                "seconds": round(statistics.median(seconds[way]), 4),
                "of_one": round(statistics.median(ratios), 3),
                "least": round(min(ratios), 3),
                "most": round(max(ratios), 3),
            }
            show({"summary": line}, out)


def _measure(url: str, known: dict[str, Way], options: argparse.Namespace, out: TextIO) -> dict[str, list[float]]:
    chooser = random.Random(options.seed)
    seconds: dict[str, list[float]] = {way: [] for way in known}
    for number in range(-1, options.rounds):  # the first round warms up
        ways = [way for way in known if number == 0 or not way.endswith("in_a_row")]
        for way in sorted(ways, key=lambda _: chooser.random()):
            prompts = [[chooser.randrange(FIRST_ID, LAST_ID) for _ in range(options.prompt)] for _ in range(STATES)]
            begin = time.perf_counter()
            known[way](url, prompts, options.tokens)
            took = time.perf_counter() - begin
            if number >= 0:
                seconds[way].append(took)
                note({"round": number, "way": way, "seconds": round(took, 4)}, out)
    return seconds


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here, the server's log beside it")
    parser.add_argument("--url", default=os.environ.get("SGLANG_URL"), help="of a running server (default $SGLANG_URL)")
    parser.add_argument("--model", type=Path, help="model folder of the server to start, without --url")
    parser.add_argument("--local", type=Path, help="model folder for transformers")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way (default 5)")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a state (default 256)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a candidate (default 64)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of prompts and order; default: the time")
    parser.add_argument("server_args", nargs="*", help="after --: arguments of the server")
    options = parser.parse_args()
    if not options.url and not options.model:
        parser.error("give --model, or --url (SGLANG_URL) of a running server")
    return options


if __name__ == "__main__":
    main()
