"""Our series on SGLang's /metrics, and what ``tessera doctor`` says of the same server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from tessera.capabilities.registry import CAPABILITIES
from tessera.cli import main
from tessera.errors import ANSWERED
from tessera.launching.server import Server
from tessera.metrics import AWAIT_ROWS
from tessera_testing.claims import claim_of
from tessera_testing.endpoints import metrics
from tessera_testing.marks import absent

OPERATE = Path(__file__).parents[2] / "examples" / "operate"
LABELS = ("code", "verdict", "work", "route", "kinds")


def read(server: Server) -> dict[str, float]:
    """Every sample of ours but buckets: its name, and the label that divides it."""
    ours = [s for s in metrics(server) if s.name.startswith("tessera:") and "le" not in s.labels]
    assert {s.labels["model_name"] for s in ours} == {server_model(server)}
    return {" ".join([s.name, *(s.labels[name] for name in LABELS if name in s.labels)]): s.value for s in ours}


def server_model(server: Server) -> str:
    """The name under which the model is served."""
    name: str = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
    return name


def send(server: Server, **fields: Any) -> httpx.Response:
    """Five new tokens for a prompt of 50."""
    sampling = {"max_new_tokens": 5, "ignore_eos": True}
    body = {"input_ids": list(range(500, 550)), "sampling_params": sampling, **fields}
    return httpx.post(f"{server.url}/generate", json=body, timeout=60)


def claims(server: Server, *found: Any) -> int:
    """Send claims."""
    return httpx.post(f"{server.url}/v1/toploc/verify", json={"claims": found}, timeout=60).status_code


def test_series(strained: Server) -> None:
    """All are there before the first event; each counts what it says, and nothing else moves it."""
    meta = send(strained, return_toploc_fingerprints=True, return_input_ids=True, return_output_ids=True).json()
    claim = claim_of(meta["meta_info"])
    send(strained, return_embedding=True)
    before = read(strained)
    assert {f"tessera:errors_total {code}" for code in ANSWERED} <= set(before)
    works = [AWAIT_ROWS, *(work for one in CAPABILITIES for work in one.work)]
    assert {f"tessera:work_seconds_count {work}" for work in works} <= set(before)
    routes = [path for one in CAPABILITIES for path in one.paths()]
    assert {f"tessera:request_seconds_count {route}" for route in routes} <= set(before)
    assert send(strained).status_code == 200
    for _ in range(3):
        assert send(strained, return_embedding={"over": "all"}).status_code == 200
    assert send(strained, return_hidden_states=True, hidden_states_format="base64").status_code == 200
    assert send(strained, input_embed_overrides=[{"positions": [3, 4], "embeds": [[0.1] * 256] * 2}]).status_code == 200
    body = {"input": "class Stack:", "pooling": "mean"}
    encoded = httpx.post(f"{strained.url}/v1/embeddings", json=body, timeout=60).json()
    assert claims(strained, claim, {**claim, "output_ids": claim["output_ids"][::-1]}) == 200
    assert send(strained, return_embedding={"pooling": "median"}).status_code == 400
    assert send(strained, return_hidden_states={"positions": [900]}).status_code == 400
    assert httpx.post(f"{strained.url}/generate", content=b" " * (5 * 2**20), timeout=60).status_code == 413
    assert "tessera: POST /generate: 413 too_large: field 'body'\n" in strained.log
    after = read(strained)
    grown = {name: round(after[name] - before.get(name, 0), 6) for name in after}
    gauges = [name for name in grown if not any(kind in name for kind in ("_total", "_count", "_sum"))]
    changed = {name: grown[name] for name in grown if grown[name] and name not in gauges and "_sum" not in name}
    judged = {name: changed.pop(name) for name in list(changed) if "claims_total" in name}
    assert sum(judged.values()) == 2
    assert changed == {
        "tessera:embeddings_total": 4,
        "tessera:rows_pooled_total": 3 * 54 + encoded["usage"]["prompt_tokens"],
        "tessera:hidden_states_total": 1,
        "tessera:hidden_state_rows_total": 54,
        "tessera:injected_prompts_total": 1,
        "tessera:injected_vectors_total": 2,
        "tessera:fingerprints_compared_total": 4,
        "tessera:errors_total bad_request": 1,
        "tessera:errors_total no_such_position": 1,
        "tessera:errors_total too_large": 1,
        "tessera:request_seconds_count /v1/embeddings": 1,
        "tessera:request_seconds_count /v1/toploc/verify": 1,
        "tessera:row_read_seconds_count pool": 4,
        "tessera:row_read_seconds_count rows": 1,
        "tessera:row_read_seconds_count top": changed["tessera:row_read_seconds_count top"],
        "tessera:work_seconds_count await_rows": 7,
        "tessera:work_seconds_count compare_fingerprints": changed["tessera:work_seconds_count compare_fingerprints"],
        "tessera:work_seconds_count decode_vectors": 1,
        "tessera:work_seconds_count encode_embedding": 4,
        "tessera:work_seconds_count encode_states": 1,
    }
    assert all(0 < grown[name.replace("_count", "_sum")] < 60 for name in changed if "_count" in name)
    slots = after["tessera:row_store_slots"]
    assert after["tessera:row_store_bytes"] == 0  # --rows-on-host
    assert after["tessera:row_store_host_bytes"] == (slots + 1) * 256 * np.float32().itemsize
    assert 50 <= after["tessera:row_store_used_slots"] <= slots
    assert after["tessera:kv_cache_bytes"] == 4 * after["tessera:row_store_host_bytes"]


def test_versions_and_options(strained: Server) -> None:
    """One series has them as labels."""
    (info,) = [sample for sample in metrics(strained) if sample.name == "tessera:server_info"]
    assert info.value == 1
    assert info.labels["on"] == ("rows,inject" if absent("detokenizers") else "rows,inject,detokenizers")
    assert (info.labels["version"], info.labels["sglang"]) == (version("sglang-tessera"), version("sglang"))
    assert "--answer-max-megabytes=16 --body-max-seconds=8" in info.labels["options"]


def test_doctor(strained: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that runs: versions, what is on, seams that were called, memory."""
    send(strained, return_embedding=True)
    assert main(["doctor", "--url", strained.url]) == 0
    said = capsys.readouterr().out
    assert "BAD" not in said
    assert re.search(rf"ok   sglang +{version('sglang')}\n", said)
    assert "vectors into prompts: on" in said
    assert "speculative decoding that sizes itself: off without --tile-spec" in said
    assert "--enable-injection" in said
    ran = next(line for line in said.splitlines() if " calls " in line).split()
    assert ran[2] == ran[4]
    assert re.search(r"ok   [1-9]\d* calls +sglang\.srt\.model_executor\.model_runner\.ModelRunner\.forward\n", said)
    assert re.search(r"ok   [1-9]\d* calls +sglang\..*, on demand\n", said)
    assert re.search(
        r"ok   row store +0\.0 MiB, 8192 slots, 0\.0 % of the KV cache's bytes, 8\.0 MiB on the host\n", said
    )


def test_doctor_of_a_stock_server(stock: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """It says that the plugin is not there."""
    assert main(["doctor", "--url", stock.url]) == 1
    assert "BAD  tessera  this server runs without the plugin" in capsys.readouterr().out


def expressions() -> Iterator[str]:
    """Of the dashboard, and of the alert rules."""
    board = json.loads((OPERATE / "grafana.json").read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
    rules = yaml.safe_load((OPERATE / "alerts.yaml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def test_dashboard_and_alerts(strained: Server) -> None:
    """Every series, label and value in them is on a server's page; TileSpec's are on that of the docs."""
    labels: dict[str, set[str]] = {}
    for sample in metrics(strained):
        labels.setdefault(sample.name, {"instance"}).update(sample.labels)
    page = (OPERATE.parents[1] / "docs/reference/metrics.md").read_text()
    for name, own in re.findall(r"^\| `(tessera:tilespec\w+)`.*\| (.*?) \|$", page, re.MULTILINE):
        labels[name] = {"instance", "model_name", *re.findall(r"`(\w+)`", own)}
    used = set()
    for expression in expressions():
        names = re.findall(r"tessera:\w+", expression)
        assert names
        for name in names:
            used.add(name)
            assert name in labels, expression
            by = re.findall(r"by \(([^)]*)\)", expression)
            requested = {*re.findall(r"(\w+)=", expression), *re.findall(r"\w+", " ".join(by))}
            assert requested <= labels[name], expression
        for value in "|".join(re.findall(r'code=~"([^"]*)"', expression)).split("|"):
            assert value in {*ANSWERED, ""}, expression
    assert len(used) > 20
