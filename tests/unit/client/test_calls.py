"""What is sent: bodies are SGLang's, and nothing that a server would overlook gets that far."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tessera.client import Claim, Injection, calls
from tessera.client.extract import whole
from tessera.client.http import Address, streaming
from tessera.client.options import ChatOptions, Timeouts

TIMEOUTS = Timeouts()


def body(call: calls.Call[Any]) -> Any:
    """As it goes over the wire."""
    content = call.content()
    assert content is not None
    return json.loads(content)


def test_generate() -> None:
    """Sampling parameters in their place, the rest at the top level; what was not asked for is not there."""
    plain = calls.generate("a", {}, TIMEOUTS).call()
    assert (plain.method, plain.path, plain.timeout) == ("POST", "/generate", 120.0)
    assert body(plain) == {"text": "a"}
    requested = calls.generate(
        (5, 6),
        {"max_new_tokens": 3, "stop": ["x"], "logprobs": True, "hidden_states": "last", "timeout": 7.0},
        TIMEOUTS,
    ).call()
    assert requested.timeout == 7.0
    assert body(requested) == {
        "input_ids": [5, 6],
        "sampling_params": {"max_new_tokens": 3, "stop": ["x"]},
        "return_logprob": True,
        "return_hidden_states": "last",
        "hidden_states_format": "base64",
    }
    assert body(streaming(calls.generate("a", {}, TIMEOUTS))) == {"text": "a", "stream": True}


def test_generate_with_embedding() -> None:
    """How to pool rides in ``return_embedding``."""
    call = calls.generate_with_embedding("a", {"pooling": "last", "over": "all", "top_k": 4}, TIMEOUTS).call()
    assert body(call) == {
        "text": "a",
        "sampling_params": {"top_k": 4},
        "return_embedding": {"encoding_format": "base64", "pooling": "last", "over": "all"},
    }


def test_chat() -> None:
    """Fields as on ``/generate``, sampling parameters by OpenAI's names; the stock server sends the token ids."""
    messages = [{"role": "user", "content": "a"}]
    plain = calls.chat(messages, {}, TIMEOUTS)
    assert (plain.path, plain.timeout) == ("/v1/chat/completions", 120.0)
    assert body(plain) == {"messages": messages, "return_token_ids": True}
    schema = '{"type": "integer"}'
    options: ChatOptions = {"max_new_tokens": 3, "json_schema": schema, "logprobs": True, "timeout": 7.0}
    options |= {"embedding": {"over": "all"}, "fingerprints": True, "nonce": "n"}
    requested = calls.chat(messages, options, TIMEOUTS)
    assert requested.timeout == 7.0
    assert body(requested) == {
        "messages": messages,
        "return_token_ids": True,
        "max_tokens": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}},
        "logprobs": True,
        "return_toploc_fingerprints": True,
        "return_input_ids": True,
        "toploc_nonce": "n",
        "return_embedding": {"encoding_format": "base64", "over": "all"},
    }
    assert "return_embedding" not in body(calls.chat(messages, {"embedding": False}, TIMEOUTS))
    wrong: Any = {"embedding": {"pool": "mean"}}
    with pytest.raises(TypeError, match="'pool'"):
        calls.chat(messages, wrong, TIMEOUTS)


def test_candidates_are_one_request() -> None:
    """All prompts, with n among the sampling parameters and ``return_logprob`` at the top level."""
    call = calls.candidates(["a", "b"], 3, whole, {"temperature": 1.0}, 300.0)
    assert body(call) == {
        "text": ["a", "b"],
        "sampling_params": {"temperature": 1.0, "top_p": 0.95, "max_new_tokens": 128, "n": 3},
        "return_logprob": True,
    }
    assert body(calls.candidates([[1], [2, 3]], 1, whole, {}, 300.0))["input_ids"] == [[1], [2, 3]]
    with pytest.raises(ValueError, match="partly texts"):
        calls.candidates(["a", [1]], 2, whole, {}, 300.0)


def test_encode() -> None:
    """A binary answer is asked for."""
    call = calls.encode_batch(["a", "b"], {"normalize": True}, 300.0)
    assert (call.path, call.accept) == ("/v1/embeddings", "application/octet-stream")
    assert body(call) == {"model": "", "input": ["a", "b"], "encoding_format": "base64", "normalize": True}
    with pytest.raises(ValueError, match="partly texts"):
        calls.encode_batch(["a", [1]], {}, 300.0)
    messages = [{"role": "user", "content": "a"}]
    chat = body(calls.encode(messages, {"pooling": "last"}, TIMEOUTS))
    assert chat == {"model": "", "messages": messages, "encoding_format": "base64", "pooling": "last"}


def test_verify() -> None:
    """Ids are numbers, whatever held them."""
    plain = Claim((1, 2), range(3, 5), ("/9k=",))
    call = calls.verify([plain, replace(plain, nonce="n")], 300.0)
    assert call.path == "/v1/toploc/verify"
    claim = {"input_ids": [1, 2], "output_ids": [3, 4], "fingerprints": ["/9k="]}
    assert body(call) == {"claims": [claim, {**claim, "nonce": "n"}]}
    injection = Injection([1.0, 2.0], positions=[1])
    (injected,) = body(calls.verify([replace(plain, inject=injection)], 300.0))["claims"]
    assert injected == {**claim, "input_embed_overrides": [injection.field()]}
    requested = body(calls.generate("a", {"fingerprints": True, "nonce": "n"}, TIMEOUTS).call())
    assert requested == {
        "text": "a",
        "return_toploc_fingerprints": True,
        "return_input_ids": True,
        "toploc_nonce": "n",
    }


def test_only_the_health_check_gives_up_at_once() -> None:
    """It has to be quick, not to be right in the end."""
    assert not calls.health_check().retried
    assert calls.server_info(TIMEOUTS).method == "GET"
    assert calls.hidden_states_probe(TIMEOUTS).retried


def test_two_probes_share_no_prefix() -> None:
    """Else the first answer of the second probe would come from the cache."""
    texts = {body(calls.hidden_states_probe(TIMEOUTS))["text"] for _ in range(2)}
    assert len(texts) == 2


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://a", "http://", "", "http:///generate", "http://a:port"])
def test_addresses(url: str) -> None:
    """What is no URL says so before anything is sent."""
    with pytest.raises(ValueError, match="is no URL"):
        Address(url)


def test_keys() -> None:
    """A key goes into a header, so it must fit into one; it is not shown where the address is."""
    assert Address("http://a", "secret").options()["headers"]["Authorization"] == "Bearer secret"
    assert "Authorization" not in Address("http://a").options()["headers"]
    with pytest.raises(ValueError, match="characters") as error:
        Address("http://a", "sec\nret")
    assert "sec" not in str(error.value)
    assert "secret" not in repr(Address("http://a", "secret"))


def test_injection() -> None:
    """Numpy in, base64 out; what was left out is not sent."""
    vectors = np.array([[1.0, -2.0]])
    call = calls.generate("a", {"inject": Injection(vectors, positions=[3])}, TIMEOUTS).call()
    (sent,) = body(call)["input_embed_overrides"]
    raw = base64.b64encode(np.array([1.0, -2.0], "<f4").tobytes()).decode()
    assert sent == {"positions": [3], "embeds": raw, "shape": [1, 2], "dtype": "float32", "mode": "replace"}
    half = Injection(np.ones(4, np.float16), token=9, mode="add", scale="norm-matched", left=5, projection="p")
    both = calls.generate("a", {"inject": [half, half]}, TIMEOUTS).call()
    assert body(both)["input_embed_overrides"][1] == {
        "token": 9,
        "embeds": base64.b64encode(np.ones(4, "<f2").tobytes()).decode(),
        "shape": [1, 4],
        "dtype": "float16",
        "mode": "add",
        "scale": "norm-matched",
        "projection": "p",
        "expect_neighbours": {"left": 5},
    }


@pytest.mark.parametrize(
    "wrong",
    [Injection([1.0]), Injection([1.0], positions=[0], token=9), Injection(np.zeros((1, 1, 1)), positions=[0])],
)
def test_wrong_injections(wrong: Injection) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="injection"):
        wrong.field()
