"""``--enable-memory-saver``, as verl starts servers: the row store is given back and restored with the KV cache."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
import torch

from tessera.launching.server import Server
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, cosine
from tessera_testing.starts import SMALL
from tessera_testing.weights import with_other_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = ("--toploc-verification", "--enable-memory-saver", "--max-total-tokens", "400000")
MIB = 2**20


def call(server: Server, path: str, **body: object) -> None:
    """One call of a training loop."""
    httpx.post(server.url + path, json=body, timeout=120).raise_for_status()


def check(server: Server, hf: HuggingFace, seed: int) -> None:
    """Computed and cached rows are the reference's."""
    prompt = fresh_prompt("memory saver", 60, seed)
    for _ in range(2):
        answer = generate(server, prompt, 40, return_embedding={"over": "all"})
        expected = hf.pooled(prompt, answer["output_ids"], "mean", "all")
        assert cosine(answer["meta_info"]["embedding"], expected) >= 0.9999


def test_rows_go_and_come_with_the_kv_cache(server_pool: ServerPool, hf: HuggingFace, tmp_path: Path) -> None:
    """Their memory is free in between; weights that change then touch nothing; what comes back is right."""
    server = server_pool.get(*OPTIONS, *SMALL, "--grammar-backend", "none", "--dtype", "bfloat16")
    check(server, hf, 1)
    flush_cache(server)
    found = re.search(r"row store of ([\d.]+) MiB \(\d+ slots, ([\d.]+) %", server.log)
    assert found is not None
    rows, share = map(float, found.groups())
    before = torch.cuda.mem_get_info()[0]
    call(server, "/release_memory_occupation", tags=["kv_cache"])
    freed = (torch.cuda.mem_get_info()[0] - before) / MIB
    assert freed >= 0.95 * (rows + rows * 100 / share)
    call(server, "/resume_memory_occupation", tags=["kv_cache"])
    check(server, hf, 2)

    call(server, "/release_memory_occupation", tags=["kv_cache", "weights"])
    call(server, "/resume_memory_occupation", tags=["weights"])
    update = {"model_path": str(with_other_weights(tmp_path)), "flush_cache": False}
    call(server, "/update_weights_from_disk", **update)
    call(server, "/resume_memory_occupation", tags=["kv_cache"])
    flush_cache(server)
    check(server, HuggingFace(tmp_path), 3)
