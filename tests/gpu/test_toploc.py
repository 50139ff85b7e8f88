"""Fingerprints on a GPU: the kernel against sorting, and honest responses of provers unlike the verifier."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from tessera.capabilities.fingerprints.calibration.distances import count_accepted
from tessera.capabilities.fingerprints.calibration.prover import ask, check, prompts
from tessera.capabilities.fingerprints.selection import value_count
from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.launching.server import Server
from tessera.rows.reads import ALL_ROWS
from tessera_kernels.ops.rows.top_rows import Chunk, Workspace, top_rows
from tessera_testing.drafts import retracting
from tessera_testing.pool import ServerPool
from tessera_testing.starts import SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COMMON = ("--toploc-verification", *SMALL, "--dtype", "bfloat16")
RETRACT = retracting(7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("hidden", [64, 100, 256, 4096, 5120, 16384])
@pytest.mark.parametrize("topk", [1, 128, 512])
def test_the_largest(hidden: int, topk: int, dtype: torch.dtype) -> None:
    """Short, long and masked chunks in one launch, many times: of equal magnitudes the first."""
    generator = torch.Generator("cuda").manual_seed(hidden)
    rows = torch.randn(6000, hidden, device="cuda", generator=generator).to(dtype)
    slots = torch.stack([torch.randperm(6000, device="cuda", generator=generator)[:5000] for _ in range(4)]).int()
    spans = [(0, 0, 1), (1, 3, 35), (2, 0, 31), (3, 0, 5000), (0, 100, 133), (1, 7, 1007)]
    masks = [ALL_ROWS, ALL_ROWS, 0x80F00F01, ALL_ROWS, 0b110, 0x5555AAAA]
    chunks = [
        Chunk(r, s, e, m, value_count(m, e - s, hidden, topk))
        for (r, s, e), m in zip(spans * 5, masks * 5, strict=True)
    ]
    workspace, stream = Workspace(), torch.cuda.Stream()
    torch.cuda.synchronize()
    # All are kept until they are there.
    *_, found = [top_rows(rows, slots, chunks[: 2 + turn], topk, workspace, stream) for turn in range(len(chunks))]
    torch.cuda.synchronize()
    for chunk, row in zip(chunks, found.cuda(), strict=True):
        out = row.clone()  # begins at a multiple of four bytes, as a view of them must
        places = out[: 4 * chunk.values].view(torch.int32).long()
        bits = out[4 * topk :][: 2 * chunk.values].view(torch.int16)
        flat = rows[slots[chunk.request, chunk.start : chunk.end].long()].bfloat16().flatten().view(torch.int16)
        counts = torch.tensor([chunk.mask >> (row % 32) & 1 for row in range(chunk.end - chunk.start)], device="cuda")
        magnitudes = torch.where(counts.repeat_interleave(hidden) == 1, flat.int() & 0x7FFF, -1)
        expected = magnitudes.sort(descending=True, stable=True).indices[: chunk.values]
        assert torch.equal(places.sort().values, expected.sort().values)
        assert torch.equal(flat[places], bits)


@pytest.mark.parametrize(
    "prover",
    [
        ("--attention-backend", "triton"),
        ("--attention-backend", "fa3", "--disable-cuda-graph"),
        (
            "--attention-backend",
            "fa3",
            "--chunked-prefill-size",
            "64",
            "--enable-mixed-chunk",
            "--max-total-tokens",
            "20000",
        ),
    ],
    ids=["triton", "no graphs", "strained"],
)
def test_honest_responses_pass(server_pool: ServerPool, prover: tuple[str, ...]) -> None:
    """Sampled responses of 128 tokens, in batches of 1, 8 and 32; the verifier runs fa3 with CUDA graphs."""
    strained = "--enable-mixed-chunk" in prover
    count = 60 if strained else 300  # each of them is retracted 18 times
    env = RETRACT if strained else None
    responses = ask(server_pool.get(*COMMON, *prover, env=env).url, count, 128)
    measured = check(server_pool.get(*COMMON, "--attention-backend", "fa3").url, responses)
    worst = max(distance for one in measured for distance in one.distances)
    print(f"\nMEASURED {' '.join(prover)}: worst fingerprint {worst}")  # noqa: T201 - what a run by hand is for
    assert count_accepted(measured, Thresholds()) == count


@pytest.mark.parametrize("backend", ["fa3", "triton"])
def test_exact_mode(server_pool: ServerPool, backend: str) -> None:
    """Row hashes of 48 responses, made one by one, by 8 and by 32, come again in other batches; changed ones do not."""
    server = server_pool.get(*COMMON, "--enable-deterministic-inference", "--attention-backend", backend)
    claims = [claim for at_once in (1, 8, 32) for claim in exact_claims(server, at_once)]
    for claim in claims[-4:]:
        ids, hashes = claim["output_ids"], claim["row_hashes"]
        claims.append(claim | {"output_ids": [*ids[:40], ids[40] ^ 1, *ids[41:]]})
        claims.append(claim | {"row_hashes": [*hashes[:-1], hashes[0]]})
    httpx.post(f"{server.url}/flush_cache", timeout=60).raise_for_status()
    answer = httpx.post(f"{server.url}/v1/toploc/verify", json={"claims": claims}, timeout=300).raise_for_status()
    results = answer.json()["results"]
    verdicts = [result["verdict"] for result in results]
    passed = verdicts[:48].count("pass")
    print(f"\nMEASURED exact mode, {backend}: {passed} of 48 pass")  # noqa: T201 - what a run by hand is for
    assert verdicts == ["pass"] * 48 + ["fail"] * 8, [result["reason"] for result in results]


def exact_claims(server: Server, at_once: int) -> list[dict[str, Any]]:
    """16 responses of 100 tokens with hashes of their rows, drawn with seeds."""

    def one(i: int) -> dict[str, Any]:
        sampling = {"temperature": 1.0, "sampling_seed": i}
        body = {
            "text": texts[i],
            "sampling_params": {**sampling, "max_new_tokens": 100, "ignore_eos": True},
            "return_toploc_fingerprints": False,
            "return_row_hashes": True,
            "return_input_ids": True,
            "return_output_ids": True,
        }
        meta = httpx.post(f"{server.url}/generate", json=body, timeout=120).raise_for_status().json()["meta_info"]
        ids = {name: meta[name] for name in ("input_ids", "output_ids", "row_hashes")}
        return {**ids, "sampling": {"temperature": 1.0, "seed": i}}

    texts = prompts(16, seed=at_once)
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, range(16)))
