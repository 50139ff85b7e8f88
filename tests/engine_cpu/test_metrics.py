"""Our counters on SGLang's /metrics."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np

from tessera.launching.server import Server
from tessera_testing.endpoints import metrics


def read(server: Server) -> dict[str, float]:
    """Every sample of ours by its name; errors by ``name code``."""
    ours = [s for s in metrics(server) if s.name.startswith("tessera:")]
    assert {s.labels["model_name"] for s in ours} == {server_model(server)}
    return {" ".join(filter(None, [s.name, s.labels.get("code", "")])): s.value for s in ours}


def server_model(server: Server) -> str:
    """The name under which the model is served."""
    name: str = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
    return name


def send(server: Server, **fields: Any) -> int:
    """Five new tokens for a prompt of 50."""
    sampling = {"max_new_tokens": 5, "ignore_eos": True}
    body = {"input_ids": list(range(500, 550)), "sampling_params": sampling, **fields}
    return httpx.post(f"{server.url}/generate", json=body, timeout=60).status_code


def test_counters_and_gauges(strained: Server) -> None:
    """Each counts what it says, and nothing else moves it."""
    send(strained, return_embedding=True)
    before = read(strained)
    assert send(strained) == 200
    for _ in range(3):
        assert send(strained, return_embedding={"over": "all"}) == 200
    assert send(strained, return_hidden_states=True, hidden_states_format="base64") == 200
    assert send(strained, return_embedding={"pooling": "median"}) == 400
    assert send(strained, return_hidden_states={"positions": [900]}) == 400
    after = read(strained)
    counters = [name for name in after if "_total" in name]
    grown = {name: round(after[name] - before.get(name, 0), 6) for name in counters}
    seconds = grown.pop("tessera:row_read_seconds_total")
    assert 0 < seconds < 5
    assert {name: growth for name, growth in grown.items() if growth} == {
        "tessera:embeddings_total": 3,
        "tessera:rows_pooled_total": 3 * 54,
        "tessera:hidden_states_total": 1,
        "tessera:hidden_state_rows_total": 54,
        "tessera:errors_total bad_request": 1,
        "tessera:errors_total no_such_position": 1,
    }
    slots = after["tessera:row_store_slots"]
    assert after["tessera:row_store_bytes"] == (slots + 1) * 256 * np.float32().itemsize
    assert 50 <= after["tessera:row_store_used_slots"] <= slots
