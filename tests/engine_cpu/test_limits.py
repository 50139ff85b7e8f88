"""What one request may bring, take and hold: large answers, slow clients, bodies that are too long or broken."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.endpoints import metrics
from tessera_testing.reference import HuggingFace, relative_error

FLOAT32_ERROR = 1e-5
SECONDS = 60.0
H = 256
MANY = {"positions": [0] * 65_536}
STRAINED_BYTES = 16 * 2**20
"""``--answer-max-megabytes`` of the strained server."""


def good(server: Server, hf: HuggingFace) -> None:
    """A request that must succeed, with the right value."""
    ids = [5, 6, 7]
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, "return_embedding": True}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=SECONDS).raise_for_status().json()
    assert relative_error(answer["meta_info"]["embedding"], hf.pooled(ids, [], "mean", "prompt")) <= FLOAT32_ERROR


def check_too_large(answer: httpx.Response, field: str = "return_hidden_states") -> None:
    """A 413 that names field and option, as JSON, also where a stream was asked for."""
    assert answer.status_code == 413, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("too_large", field)
    assert "--answer-max-megabytes" in error["message"]


ONE = {"max_new_tokens": 1}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
TEXTS = {"model": "tiny", "prompt": ["a"] * 17, "max_tokens": 2}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [5, 6, 7], "sampling_params": {**ONE, "n": 64}}),
        ("/generate", {"input_ids": [[5, 6, 7]] * 17, "sampling_params": ONE}),
        ("/generate", {"text": ["import os"] * 17, "sampling_params": [ONE] * 17}),
        ("/generate", {"text": ["a"] * 17, "sampling_params": ONE, "return_hidden_states": [MANY] * 17}),
        ("/generate", {"text": "a", "sampling_params": {**ONE, "n": 2}, "hidden_states_format": "list"}),
        ("/v1/completions", TEXTS),
        ("/v1/completions", {**TEXTS, "prompt": [5, 6], "n": 17}),
        ("/v1/chat/completions", {**CHAT, "n": 64}),
    ],
)
def test_answers_that_are_too_large(
    server: Server, hf: HuggingFace, path: str, body: dict[str, Any], *, stream: bool
) -> None:
    """Refused by the product of positions, prompts, samples and width, on each route, before anything is computed."""
    rows = {"return_hidden_states": MANY, "hidden_states_format": "base64", "stream": stream}
    check_too_large(httpx.post(f"{server.url}{path}", json={**rows, **body}, timeout=SECONDS))
    good(server, hf)


def test_vectors_that_are_too_many(strained: Server, hf: HuggingFace) -> None:
    """A number of a list counts 32 bytes."""
    fit = STRAINED_BYTES // (H * 32)
    body = {"input_ids": [[5]] * (fit + 1), "sampling_params": {"max_new_tokens": 0}}
    url = f"{strained.url}/generate"
    check_too_large(httpx.post(url, json={**body, "return_embedding": True}, timeout=SECONDS), "return_embedding")
    good(strained, hf)


def test_texts_are_counted_by_their_tokens(strained: Server, hf: HuggingFace) -> None:
    """Only the tokenizer knows how many rows a text has; a stream waits for it with its status."""
    text = "import os " * 150
    tokens = len(hf.tokenizer(text)["input_ids"])
    fit = STRAINED_BYTES // (tokens * H * 32)
    body = {"sampling_params": {"max_new_tokens": 0}, "return_hidden_states": {"over": "prompt"}}
    url = f"{strained.url}/generate"
    check_too_large(httpx.post(url, json={**body, "text": [text] * (fit + 1)}, timeout=SECONDS))
    check_too_large(httpx.post(url, json={**body, "text": [text] * (fit + 1), "stream": True}, timeout=SECONDS))
    answers = httpx.post(url, json={**body, "text": [text] * fit}, timeout=SECONDS).raise_for_status().json()
    assert [len(answer["meta_info"]["hidden_states"][0]) for answer in answers] == [tokens] * fit


class Reader:
    """A request for 16 MiB of raw rows whose answer is not read before `read` is called."""

    def __init__(self, server: Server) -> None:
        body = {
            "input_ids": [5, 6, 7],
            "sampling_params": {"max_new_tokens": 1},
            "return_hidden_states": {"positions": [1] * (STRAINED_BYTES // (H * 4))},
            "hidden_states_format": "base64",
        }
        self._client = httpx.Client(timeout=SECONDS)
        request = self._client.build_request("POST", f"{server.url}/generate", json=body)
        self.response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._send, args=(request,))
        self._thread.start()

    def _send(self, request: httpx.Request) -> None:
        self.response = self._client.send(request, stream=True)

    def read(self) -> list[int]:
        """The shape of the rows."""
        self._thread.join(SECONDS)
        assert self.response is not None
        self.response.read()
        assert self.response.status_code == 200, self.response.text
        shape: list[int] = self.response.json()["meta_info"]["hidden_states"]["shape"]
        return shape

    def close(self) -> None:
        """Leave."""
        self._thread.join(SECONDS)
        if self.response is not None:
            self.response.close()
        self._client.close()


def held(server: Server) -> tuple[float, float]:
    """Bytes that answers hold, and how many requests wait."""
    found = {sample.name: sample.value for sample in metrics(server)}
    return found.get("tessera:answer_bytes_held", 0), found.get("tessera:answers_waiting", 0)


def wait_until(server: Server, wanted: tuple[float, float]) -> None:
    """So much is held, so many wait."""
    deadline = time.monotonic() + SECONDS
    while (now := held(server)) != wanted:
        assert time.monotonic() < deadline, f"{now}, not {wanted}"
        time.sleep(0.1)


def test_raw_rows_wait_for_room(strained: Server, hf: HuggingFace) -> None:
    """Two of the largest answers are on their way; others wait in line until one was read, or its client left."""
    holders = [Reader(strained), Reader(strained)]
    wait_until(strained, (2 * STRAINED_BYTES, 0))
    waiting = [Reader(strained)]
    wait_until(strained, (2 * STRAINED_BYTES, 1))
    waiting.append(Reader(strained))
    wait_until(strained, (2 * STRAINED_BYTES, 2))
    good(strained, hf)  # whoever wants no raw rows waits for nobody
    holders[0].close()
    assert waiting[0].read() == [STRAINED_BYTES // (H * 4), H]
    assert holders[1].read() == waiting[1].read()
    wait_until(strained, (0, 0))
    for one in (holders[1], *waiting):
        one.close()


def test_an_aborted_request_leaves_the_line(strained: Server, hf: HuggingFace) -> None:
    """As if it had been queued: its client reads that it was aborted, and those behind it move up."""
    holders = [Reader(strained), Reader(strained)]
    wait_until(strained, (2 * STRAINED_BYTES, 0))
    body = {"text": "a", "return_hidden_states": True, "sampling_params": {"max_new_tokens": 2000}, "rid": "waits"}
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{strained.url}/generate", json=body, timeout=SECONDS))
    )
    thread.start()
    wait_until(strained, (2 * STRAINED_BYTES, 1))
    httpx.post(f"{strained.url}/abort_request", json={"rid": "waits"}, timeout=SECONDS).raise_for_status()
    thread.join(SECONDS)
    assert "aborted" in answers[0].text
    assert [one.read() for one in holders] == [[STRAINED_BYTES // (H * 4), H]] * 2
    wait_until(strained, (0, 0))
    good(strained, hf)
    for one in holders:
        one.close()


def exchange(server: Server, head: bytes, body: bytes) -> bytes:
    """Send all of a request before anything is read, as many clients do; what comes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as connection:
        connection.sendall(head + body)
        return b"".join(iter(lambda: connection.recv(2**16), b""))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/encode", "/v1/toploc/verify"])
def test_a_body_that_is_too_large_is_answered(server: Server, hf: HuggingFace, path: str) -> None:
    """Its client can read the 413, though it sends all of it first: no reset."""
    content = b" " * (64 * 2**20 + 1)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    answer = exchange(server, head, content)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "too_large"
    chunked = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{len(content):x}\r\n".encode()
    assert exchange(server, chunked, content + b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    good(server, hf)


def dribble(server: Server, path: str) -> bytes:
    """A byte of the body every half second, until there is an answer; all that comes until the server closes.

    It resets the connection where a byte comes after that.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.5) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n".encode())
        deadline, answer = time.monotonic() + SECONDS, b""
        while not answer:
            assert time.monotonic() < deadline
            try:
                answer = connection.recv(2**16)
            except TimeoutError:
                connection.sendall(b" ")
        connection.settimeout(SECONDS)
        with suppress(ConnectionResetError):
            while more := connection.recv(2**16):
                answer += more
        return answer


def test_bodies_that_come_too_slowly(strained: Server, hf: HuggingFace) -> None:
    """408 after ``--body-max-seconds``, whoever decodes the body, and the connection is closed."""
    paths = ("/generate", "/v1/chat/completions", "/encode")
    with ThreadPoolExecutor(len(paths)) as pool:
        answers = list(pool.map(lambda path: dribble(strained, path), paths))
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408 ")
        error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
        assert (error["code"], error["param"]) == ("too_slow", "body")
        assert "--body-max-seconds" in error["message"]
    good(strained, hf)


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/embeddings", '{"input": 5, "input": "a"}', "input"),
        ("/encode", '{"text": "a", "pooling": "median", "pooling": "mean"}', "pooling"),
        ("/v1/toploc/verify", '{"claims": [{"nonce": 1, "nonce": null}]}', "nonce"),
        (
            "/generate",
            '{"text": "a", "return_embedding": {"pooling": 1}, "return_embedding": true}',
            "return_embedding",
        ),
        ("/v1/completions", '{"prompt": "a", "return_embedding": 1, "return_embedding": true}', "return_embedding"),
        ("/generate", '{"text": "a", "return_embedding": {"pooling": "x", "pooling": "mean"}}', "pooling"),
        ("/v1/messages", '{"return_embedding": true, "return_embedding": false}', "return_embedding"),
    ],
)
def test_keys_that_are_there_twice(server: Server, hf: HuggingFace, path: str, body: str, key: str) -> None:
    """A 400 that names the key: no decoder looks at the first."""
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=SECONDS)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == key
    good(server, hf)
