"""Our fields on every route of SGLang that generates or scores: answered, or refused by name; never dropped."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tessera.launching.server import Server
from tessera_testing.claims import FINGERPRINTS
from tessera_testing.tiny import TINY

MESSAGES = [{"role": "user", "content": "def f("}]
OPTIONS = {"num_predict": 4, "temperature": 0}
TEXT: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": str(TINY), "input": "def f(", "max_output_tokens": 4, "temperature": 0},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "temperature": 0},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "stream": False, "options": OPTIONS},
    "/api/generate": {"model": "tiny", "prompt": "def f(", "stream": False, "options": OPTIONS},
}
SCORES: dict[str, dict[str, Any]] = {
    "/v1/score": {"model": "tiny", "query": "def", "items": ["a", "b"], "label_token_ids": [5, 6]}
}
VERTEX: dict[str, Any] = {"instances": [{"text": "def f("}, {"text": "import"}]}
FIELDS: list[dict[str, Any]] = [
    {"return_embedding": True},
    {"return_embedding": {"pooling": "median"}},
    {"return_hidden_states": "last"},
    {"hidden_states_format": "base64"},
    {"return_toploc_fingerprints": True},
    {"toploc_nonce": "x"},
    {"return_output_ids": True},
    {"input_embed_overrides": [{"position": 0, "vector": [0.0]}]},
    {"input_embeds_b64": "AAAA"},
]


PASSED = {path: (200, 500) if path == "/api/chat" else (200,) for path in TEXT | SCORES}
"""What they answer where they ask for nothing of ours: /api/chat fails in SGLang itself, with this tokenizer."""


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    """The answer, whatever its status."""
    return httpx.post(server.url + path, json=body, timeout=120)


def refused(answer: httpx.Response, field: str) -> None:
    """A 400 that names the field and where it belongs."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (field, "bad_request")
    assert "/generate" in error["message"]


@pytest.mark.parametrize("path", [*TEXT, *SCORES])
def test_a_route_that_cannot_answer_a_field_refuses_it(server: Server, path: str) -> None:
    """Each field, whether its value would be right or not; what asks for nothing is answered."""
    body = (TEXT | SCORES)[path]
    for fields in FIELDS:
        refused(post(server, path, body | fields), *fields)
    off = {"return_embedding": None, "return_hidden_states": False, "return_toploc_fingerprints": False}
    assert post(server, path, body | off).status_code in PASSED[path]


def test_a_server_without_our_options_drops_nothing_either(bare: Server) -> None:
    """Neither there, nor where the field would be answered with the option."""
    refused(post(bare, "/api/generate", TEXT["/api/generate"] | {"return_embedding": True}), "return_embedding")
    for path, body in (("/generate", {"text": "a"}), ("/invocations", {"model": "tiny", "messages": MESSAGES})):
        answer = post(bare, path, body | {"return_embedding": True})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_embedding")
    assert post(bare, "/api/generate", TEXT["/api/generate"]).status_code == 200


def test_a_transcriptions_form(server: Server) -> None:
    """Its fields are parts of a form."""
    file = {"file": ("a.wav", b"RIFF", "audio/wav")}
    url = f"{server.url}/v1/audio/transcriptions"
    refused(httpx.post(url, files=file, data={"return_embedding": "true"}, timeout=60), "return_embedding")
    answer = httpx.post(url, files=file, data={"return_embedding": "false"}, timeout=60)
    assert "return_embedding" not in answer.text


@pytest.mark.parametrize("path", TEXT)
def test_every_response_has_fingerprints_or_is_refused(fingerprinting: Server, path: str) -> None:
    """``--toploc-verification`` promises them; a request may say that it wants none."""
    refused(post(fingerprinting, path, TEXT[path]), "return_toploc_fingerprints")
    assert post(fingerprinting, path, TEXT[path] | {"return_toploc_fingerprints": False}).status_code in PASSED[path]


def test_scores_are_no_responses(fingerprinting: Server) -> None:
    """They are answered as before."""
    assert post(fingerprinting, "/v1/score", SCORES["/v1/score"]).status_code == 200


def test_invocations_are_chats(fingerprinting: Server) -> None:
    """SageMaker's route: what a chat answers."""
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "temperature": 0, "return_embedding": True}
    chat, own = (
        post(fingerprinting, path, body).json()["choices"][0] for path in ("/v1/chat/completions", "/invocations")
    )
    np.testing.assert_allclose(own["embedding"], chat["embedding"], rtol=1e-5, atol=1e-5)
    assert own["message"][FINGERPRINTS]
    answer = post(fingerprinting, "/invocations", body | {"return_embedding": {"pooling": "median"}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_embedding.pooling")


def test_vertex_takes_fields_in_its_parameters(fingerprinting: Server) -> None:
    """There they are those of /generate; at the top level and in an instance they would be dropped."""
    sampling = {"sampling_params": {"max_new_tokens": 4}}
    body = VERTEX | {"parameters": {**sampling, "return_embedding": True}}
    for prediction in post(fingerprinting, "/vertex_generate", body).raise_for_status().json():
        assert len(prediction["meta_info"]["embedding"]) == 256
        assert prediction["meta_info"][FINGERPRINTS]
    for wrong in (
        VERTEX | {"return_embedding": True},
        {"instances": [VERTEX["instances"][0], VERTEX["instances"][1] | {"return_embedding": True}]},
    ):
        answer = post(fingerprinting, "/vertex_generate", wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_embedding")
        assert "parameters" in answer.json()["error"]["message"]


@pytest.mark.parametrize("field", ["input_embeds", "input_embeds_b64"])
def test_completions_take_no_matrices(injecting: Server, field: str) -> None:
    """Those are for /generate alone."""
    for path, body in (("chat/completions", {"messages": MESSAGES}), ("completions", {"prompt": "def f("})):
        refused(post(injecting, f"/v1/{path}", {"model": "tiny", "max_tokens": 2, **body, field: [[0.0] * 256]}), field)
