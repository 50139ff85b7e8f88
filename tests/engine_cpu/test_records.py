"""SGLang's exporter, request logs and dumps of requests that have our fields."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.waiting import wait_until

SAMPLING = {"max_new_tokens": 3, "temperature": 0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "def f("}], "max_tokens": 3}
OVERRIDES = [{"positions": [0], "embeds": [[0.5] * 256]}]


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    """The answer."""
    return httpx.post(server.url + path, json=body, timeout=120).raise_for_status()


def records(folder: Path, rid: str) -> list[dict[str, Any]]:
    """Those of one request and of its prompts, once they are written; every line of the file is a record."""

    def written() -> list[dict[str, Any]]:
        lines = [line for file in folder.glob("*.log") for line in file.read_text().split("\n")[:-1]]
        return [record for record in map(json.loads, lines) if record["id"].startswith(rid)]

    wait_until(lambda: bool(written()))
    return written()


def parameters(record: dict[str, Any]) -> dict[str, Any]:
    """Of the request, as they were recorded."""
    found: dict[str, Any] = json.loads(record["request_parameters"])
    return found


def test_every_record_is_whole(strained: Server, records_folder: Path) -> None:
    """States, embeddings and vectors are in none; what was asked for is, and nothing of how it rides."""
    requested: dict[str, Any] = {"return_hidden_states": True, "return_embedding": {"over": "all"}}
    body = {"text": "def f(", "sampling_params": SAMPLING, **requested}
    post(strained, "/generate", {**body, "rid": "states"})
    post(strained, "/generate", {**body, "rid": "stream", "stream": True})
    injected = {**body, "rid": "vectors", "input_embed_overrides": OVERRIDES, "return_toploc_fingerprints": True}
    post(strained, "/generate", injected)
    several = {**body, "text": ["def f(", "import"], "rid": ["one", "two"], "return_hidden_states": ["last", False]}
    post(strained, "/generate", several)
    post(strained, "/v1/chat/completions", {**CHAT, **requested, "rid": "chat"})
    post(strained, "/generate", {"text": "def f(", "sampling_params": SAMPLING, "rid": "plain"})
    found = {
        rid: records(records_folder, rid) for rid in ("states", "stream", "vectors", "one", "two", "chat", "plain")
    }
    assert [len(own) for own in found.values()] == [1] * 7
    for rid, (record,) in found.items():
        assert record["finish_reason"] is not None
        assert not {"embedding", "hidden_states"} & record.keys()
        assert "tessera" not in record["request_parameters"], rid
        assert (parameters(record).get("return_embedding") or {}).get("over") == (None if rid == "plain" else "all")
    said = {rid: parameters(record).get("return_hidden_states") for rid, (record,) in found.items()}
    assert said == {
        **dict.fromkeys(("states", "stream", "vectors", "chat"), True),
        "one": "last",
        "two": False,
        "plain": False,
    }
    assert parameters(found["vectors"][0])["input_embed_overrides"] == "(vectors)"
    assert parameters(found["vectors"][0])["return_toploc_fingerprints"] is True


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_logs_have_no_secret(strained: Server, level: int, form: str) -> None:
    """At each level the fields are there, the answer's numbers and our keys are not; JSON lines are JSON."""
    configure = {"log_requests": True, "log_requests_level": level, "log_requests_format": form}
    begin = len(strained.log)
    post(strained, "/configure_logging", configure)
    try:
        body = {"text": "def f(", "sampling_params": SAMPLING, "return_embedding": {"over": "all"}}
        post(strained, "/generate", body | {"return_hidden_states": True, "input_embed_overrides": OVERRIDES})
        post(strained, "/v1/chat/completions", CHAT | {"return_embedding": {"over": "all"}})
    finally:
        post(strained, "/configure_logging", {"log_requests": False})
    log = strained.log[begin:]
    lines = [line for line in log.splitlines() if "return_embedding" in line]
    assert len(lines) >= 4
    assert all("tessera_" not in line and "0.5, 0.5" not in line for line in lines)
    if form == "json":
        assert all(json.loads(line[line.index("{") :])["event"] for line in lines)
    assert all("over" in line for line in lines)


def test_dumps_can_be_sent_again(strained: Server, tmp_path: Path) -> None:
    """A dumped request is one that this or another server takes; its vectors are gone, and said to have been."""
    post(strained, "/configure_logging", {"dump_requests_folder": str(tmp_path), "dump_requests_threshold": 2})
    try:
        body = {"text": "def f(", "sampling_params": SAMPLING, "return_embedding": {"over": "all"}}
        first = post(strained, "/generate", body | {"return_hidden_states": "last"}).json()
        post(strained, "/generate", body | {"input_embed_overrides": OVERRIDES})
        wait_until(lambda: len(read(tmp_path)) > 0)
    finally:
        post(strained, "/configure_logging", {"dump_requests_folder": "", "dump_requests_threshold": 1000})
    states, vectors = (entry[0] for entry in read(tmp_path))
    assert vectors.input_embed_overrides == "(vectors)"
    sent = {"text": states.text, "sampling_params": states.sampling_params, "return_embedding": states.return_embedding}
    again = post(strained, "/generate", sent | {"return_hidden_states": states.return_hidden_states}).json()
    assert len(again["meta_info"]["hidden_states"]) == 256
    assert again["meta_info"]["embedding_tokens"] == first["meta_info"]["embedding_tokens"]


def read(folder: Path) -> list[Any]:
    """The requests in the one dump, [] while it is being written."""
    for file in folder.glob("*.pkl"):
        try:
            with file.open("rb") as content:
                found: list[Any] = pickle.load(content)["requests"]  # noqa: S301 - SGLang wrote it
        except (EOFError, pickle.UnpicklingError):
            continue
        else:
            return found
    return []
