"""What comes back: whole results, or the error that says what to do."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from tessera.client import (
    ClientError,
    HiddenStatesUnsupported,
    InvalidResponse,
    NotApplied,
    RateLimited,
    RequestRefused,
    ServerError,
    Unauthorized,
    answers,
)
from tessera.client.status import Answer, check_status, parse_json

NOTHING: frozenset[str] = frozenset()


def answer(body: Any, status: int = 200, **headers: str) -> Answer:
    """Of a server; headers with ``_`` for ``-``."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, content)


def item(text: str = "ab", **meta: Any) -> dict[str, Any]:
    """One generation as SGLang writes it."""
    known = {
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 3,
        "cached_tokens": 1,
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 2, None]],
    }
    return {"text": text, "output_ids": [7, 2], "meta_info": known | meta}


@pytest.mark.parametrize(
    ("status", "body", "kind", "code", "said"),
    [
        (400, {"error": {"message": "f: got 1", "code": "bad_request"}}, RequestRefused, "bad_request", "f: got 1"),
        (400, {"object": "error", "message": "no such", "code": 400}, RequestRefused, None, "no such"),
        (400, {"error": {"message": "--enable-return-hidden-states"}}, HiddenStatesUnsupported, None, "sglang-tessera"),
        (401, {"error": "Unauthorized"}, Unauthorized, None, "api_key="),
        (403, b"", Unauthorized, None, "HTTP 403"),
        (404, {"detail": "Not Found"}, RequestRefused, None, "Not Found; is the URL"),
        (422, {"detail": [{"loc": ["body"]}]}, RequestRefused, None, "loc"),
        (422, b"Failed to deserialize", RequestRefused, None, "a proxy takes less"),
        (429, {"error": {"message": "slow down"}}, RateLimited, None, "fewer requests"),
        (500, b"Internal Server Error", ServerError, None, "Internal Server Error"),
        (503, {"error": {"message": "x", "code": "request_aborted"}}, ServerError, "request_aborted", "HTTP 503"),
        (307, b"", RequestRefused, None, "HTTP 307"),
        (502, b"<html>" + b"x" * 10_000, ServerError, None, "<html>"),
        (500, b"\xff\xfe", ServerError, None, "HTTP 500"),
        (500, [1], ServerError, None, "[1]"),
        (500, b"[" * 100_000, ServerError, None, "[["),
    ],
)  # fmt: skip
def test_statuses(status: int, body: Any, kind: type[ClientError], code: str | None, said: str) -> None:
    """Each status has its exception, with the server's words and a hint."""
    with pytest.raises(ClientError) as raised:
        check_status(answer(body, status))
    error = raised.value
    assert type(error) is kind
    assert said in str(error)
    assert len(str(error)) < 600
    assert (getattr(error, "status", None), getattr(error, "code", None)) == (status, code)
    assert error.retried == (status >= 500 or status == 429)


@pytest.mark.parametrize(("header", "seconds"), [("2", 2.0), ("1.5", 1.5), ("-1", 0.0), ("1e9", 3600.0), ("Fri", None)])
def test_retry_after(header: str, seconds: float | None) -> None:
    """Seconds within reason; a date counts as absent."""
    with pytest.raises(RateLimited) as raised:
        check_status(answer({}, 429, retry_after=header))
    assert raised.value.retry_after == seconds


def test_a_generation() -> None:
    """Its fields, the sum of its log-probabilities; the rest stays in ``meta``."""
    found = answers.generation(item(id="x"), frozenset({"token_logprobs"}))
    assert (found.text, found.output_ids, found.finish_reason) == ("ab", (7, 2), "stop")
    assert (found.prompt_tokens, found.cached_tokens, found.log_prob) == (3, 1, -0.75)
    assert found.meta["id"] == "x"
    assert answers.generation(item(), NOTHING).log_prob is None


@pytest.mark.parametrize(
    ("broken", "wanted"),
    [
        ("text", ""),
        (None, ""),
        ([], ""),
        ({}, ""),
        ({"text": "a", "meta_info": {}}, ""),
        (item() | {"output_ids": 7}, ""),
        (item(prompt_tokens="x"), ""),
        (item(finish_reason=None), ""),
        (item(output_token_logprobs=[[-0.5, 7, None]]), "token_logprobs"),
        (item(output_token_logprobs=[[None, 7], [None, 2]]) | {"output_ids": [7, 2]}, "token_logprobs"),
        (item(output_token_logprobs=None), "token_logprobs"),
        (item(embedding="!", embedding_tokens=1), "embedding"),
        (item(embedding="AAA=", embedding_tokens=1), "embedding"),
        (item(hidden_states={"data": "AAAA", "dtype": "float32", "shape": [1, 1]}), "hidden_states"),
        (item(hidden_states={"data": "AAAA", "dtype": "int8", "shape": [3]}), "hidden_states"),
        (item(hidden_states={"data": "AAAAAA==", "dtype": "float32", "shape": [2, 1]}), "hidden_states"),
        (item(toploc_verification_fingerprints=None, input_ids=[1]), "fingerprints"),
    ],
)
def test_what_is_not_whole_is_no_generation(broken: Any, wanted: str) -> None:
    """Never a result with a part missing."""
    with pytest.raises(InvalidResponse):
        answers.generation(broken, frozenset({wanted}))


def chat(**choice: Any) -> dict[str, Any]:
    """The answer to a chat, as SGLang writes it."""
    message = {"role": "assistant", "content": "ab", "tool_calls": None}
    known = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [7, 2]}
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]}
    return {"choices": [known | {"logprobs": logprobs} | choice], "usage": {"prompt_tokens": 3}}


def test_a_chat() -> None:
    """Its fields come from the choice, its message and the usage."""
    fingerprints = {"toploc_verification_fingerprints": ["/9k="], "content": None}
    found = answers.chat(answer(chat(input_ids=[1], message=fingerprints)), frozenset({"fingerprints"}), {})
    assert (found.text, found.fingerprints, found.input_ids) == ("", ("/9k=",), (1,))
    found = answers.chat(answer(chat()), frozenset({"token_logprobs"}), {})
    assert (found.text, found.output_ids, found.finish_reason) == ("ab", (7, 2), "stop")
    assert (found.prompt_tokens, found.cached_tokens, found.log_prob) == (3, 0, -0.75)
    assert answers.chat(answer(chat(response_token_ids=[5])), NOTHING, {}).output_ids == (5,)  # its name since 0.5.23
    cached = {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}
    assert answers.chat(answer(chat() | cached), NOTHING, {}).cached_tokens == 2


@pytest.mark.parametrize(
    ("broken", "wanted"),
    [
        ([], ""),
        ({"choices": []}, ""),
        ({"choices": [1], "usage": {}}, ""),
        (chat(token_ids=7), ""),
        (chat() | {"usage": None}, ""),
        (chat(logprobs=None), "token_logprobs"),
        (chat(logprobs={"content": [{}]}), ""),
        (chat(embedding="!", embedding_tokens=1), "embedding"),
    ],
)
def test_what_is_not_whole_is_no_chat(broken: Any, wanted: str) -> None:
    """Never a result with a part missing."""
    with pytest.raises(InvalidResponse):
        answers.chat(answer(broken), frozenset({wanted}), {})


def test_an_abort_is_no_generation() -> None:
    """Its text is cut off somewhere; with a status of its own where it has one."""
    with pytest.raises(ServerError, match="shutting down") as raised:
        answers.generation(item(finish_reason={"type": "abort", "message": "shutting down"}), NOTHING)
    assert (raised.value.status, raised.value.code) == (503, "request_aborted")
    reason = {"type": "abort", "message": "m", "status_code": 400, "err_type": "no_such_position"}
    with pytest.raises(RequestRefused) as refused:
        answers.generation(item(finish_reason=reason), NOTHING)
    assert refused.value.code == "no_such_position"


def test_a_generation_whose_weights_changed() -> None:
    """Its tokens stand where nothing of rows was asked for; else it is worth another try."""
    why = "weights_changed: the weights changed during this request"
    outdated = item(embedding=None, embedding_tokens=0, rows_unavailable=why)
    with pytest.raises(ServerError, match="changed during") as raised:
        answers.generation(outdated, frozenset({"embedding"}))
    assert (raised.value.status, raised.value.code) == (503, "weights_changed")
    assert answers.generation(outdated, frozenset({"token_logprobs"})).text == "ab"


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("body", [[item(), item()], {"text": "a"}, "x", None])
def test_another_number_of_generations(body: Any, count: int) -> None:
    """None is returned."""
    with pytest.raises(InvalidResponse, match="asked for"):
        answers.generations(answer(body), count, NOTHING)


def test_rows() -> None:
    """Each dtype becomes float32; nothing there is not the same as unsupported."""
    values = np.array([[1.0, -2.5], [0.0, 3.0]], np.float32)
    for dtype, raw in (
        ("float32", values.tobytes()),
        ("float16", values.astype(np.float16).tobytes()),
        ("bfloat16", (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()),
    ):
        states = {"data": base64.b64encode(raw).decode(), "dtype": dtype, "shape": [2, 2]}
        found = answers.generation(item(hidden_states=states), frozenset({"hidden_states"})).hidden_states
        assert found is not None
        assert found.dtype == np.float32
        assert np.array_equal(found, values)
    empty = answers.generation(item(embedding=None, embedding_tokens=0), frozenset({"embedding"}))
    assert empty.embedding is None
    without: list[tuple[str, dict[str, Any]]] = [
        ("embedding", {}),
        ("hidden_states", {}),
        ("hidden_states", {"hidden_states": [[[1.0]]]}),
        ("fingerprints", {"input_ids": [1]}),
    ]
    for wanted, meta in without:
        with pytest.raises(HiddenStatesUnsupported, match="--enable-return-hidden-states"):
            answers.generation(item(**meta), frozenset({wanted}))


def matrix(values: bytes, shape: str, status: int = 200) -> Answer:
    """A binary answer."""
    return answer(values, status, x_tessera_shape=shape, x_tessera_prompt_tokens="9")


def test_embeddings() -> None:
    """The matrix as it was sent."""
    found = answers.embeddings(matrix(np.arange(6, dtype="<f4").tobytes(), "2,3"), 2)
    assert found.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (len(found), found[1].tolist(), found.prompt_tokens) == (2, [3, 4, 5], 9)


@pytest.mark.parametrize(
    "wrong",
    [
        matrix(bytes(24), "3,2"),
        matrix(bytes(20), "2,3"),
        matrix(bytes(24), "2"),
        matrix(bytes(24), "-2,-3"),
        matrix(bytes(24), "a,b"),
        answer(bytes(24)),
        answer({"data": []}),
    ],
)
def test_a_wrong_matrix(wrong: Answer) -> None:
    """Too few rows, too few bytes, no shape, JSON: none of it is returned."""
    with pytest.raises(InvalidResponse):
        answers.embeddings(wrong, 2)


LAST = {"pooling": "last", "over": "all", "normalize": True}


@pytest.mark.parametrize(
    ("sent", "meta"),
    [
        ({"return_embedding": {"encoding_format": "base64", **LAST}}, {"embedding_options": LAST}),
        ({"return_embedding": {"dimensions": 4}}, {"embedding_options": {"dimensions": 4, "pooling": "mean"}}),
        ({"input_embed_overrides": [{"shape": [2, 8]}, {"shape": [1, 8]}]}, {"injected": 3}),
        ({"toploc_nonce": "n"}, {"toploc_nonce": "n"}),
    ],
)
def test_what_was_asked_for_must_have_been_applied(sent: dict[str, Any], meta: dict[str, Any]) -> None:
    """Another value, or none at all, is no answer: the likely cause is named."""
    answers.generation(item(**meta), NOTHING, sent)
    (name,) = meta
    wrong: Any
    for wrong in ({}, {name: None}, {name: {"pooling": "mean"} if name == "embedding_options" else 1}):
        with pytest.raises(NotApplied, match="sglang-router"):
            answers.generation(item(**wrong), NOTHING, sent)
    answers.generation(item(), NOTHING, {"return_embedding": {"encoding_format": "base64"}, "text": "a"})


def test_embeddings_as_json() -> None:
    """A proxy may not pass on that bytes are wanted: the same matrix, in the order of the inputs."""
    rows = [base64.b64encode(np.array(row, "<f4").tobytes()).decode() for row in ([1, 2], [3, 4])]
    data = [{"index": i, "embedding": rows[i], "embedding_options": LAST} for i in (1, 0)]
    body = {"data": data, "usage": {"prompt_tokens": 5}}
    found = answers.embeddings(answer(body), 2, {"pooling": "last", "dimensions": None})
    assert (found.numpy().tolist(), found.prompt_tokens) == ([[1, 2], [3, 4]], 5)
    with pytest.raises(NotApplied, match="pooling"):
        answers.embeddings(answer(body), 2, {"pooling": "mean"})
    with pytest.raises(InvalidResponse, match="3 embeddings were asked for"):
        answers.embeddings(answer(body), 3)
    of_another_server = {**body, "data": [{"index": 0, "embedding": rows[0]}]}
    with pytest.raises(InvalidResponse, match="sglang-tessera"):
        answers.embeddings(answer(of_another_server), 1)


@pytest.mark.parametrize("header", ["{}", "null", '{"pooling": "mean"}'])
def test_a_matrix_says_how_it_was_made(header: str) -> None:
    """In a header; what it lacks was not applied."""
    good = answer(
        bytes(8), x_tessera_shape="1,2", x_tessera_prompt_tokens="1", x_tessera_embedding_options=json.dumps(LAST)
    )
    assert len(answers.embeddings(good, 1, {"pooling": "last"})) == 1
    bad = Answer(200, {**good.headers, "x-tessera-embedding-options": header}, bytes(8))
    with pytest.raises(NotApplied, match="pooling"):
        answers.embeddings(bad, 1, {"pooling": "last"})


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, {"detail": "Not Found"}), (400, {"message": "not an embedding model", "code": 400}), (400, b"")],
)
def test_no_such_route(status: int, body: Any) -> None:
    """What a stock server says to /v1/embeddings; a refusal of ours has a code."""
    with pytest.raises(HiddenStatesUnsupported):
        answers.embeddings(answer(body, status), 1)
    with pytest.raises(RequestRefused) as refused:
        answers.embeddings(answer({"error": {"message": "m", "code": "bad_request"}}, 400), 1)
    assert not isinstance(refused.value, HiddenStatesUnsupported)


def test_verdicts() -> None:
    """One for each claim; only a pass is true."""
    results = [{"verdict": "pass", "n": 1}, {"verdict": "fail", "reason": "far"}, {"verdict": "unverifiable"}]
    found = answers.verdicts(answer({"results": results}), 3)
    assert [bool(verdict) for verdict in found] == [True, False, False]
    assert found[0].details["n"] == 1
    assert [verdict.reason for verdict in found] == ["", "far", ""]
    wrong: Any
    for wrong in ({"results": results[:2]}, {"results": [*results[:2], {"verdict": "ok"}]}, [], {}):
        with pytest.raises(InvalidResponse):
            answers.verdicts(answer(wrong), 3)


def test_server_info() -> None:
    """A stock server has no Tessera; something else is no server."""
    stock = answers.server_info(answer({"version": "0.5.17", "model_path": "m"}))
    assert (stock.engine, stock.tessera, stock.features) == ("sglang 0.5.17", None, ())
    ours = answers.server_info(answer({"version": "1", "model_path": "m", "tessera": {"version": "2", "on": ["rows"]}}))
    assert (ours.tessera, ours.features) == ("2", ("rows",))
    wrong: Any
    for wrong in ({}, [], {"version": "1"}):
        with pytest.raises(InvalidResponse):
            answers.server_info(answer(wrong))


def test_no_json() -> None:
    """A good status with something else behind it."""
    for content in (b"", b"<html>", b'{"text": "a', b"\xff", b"[" * 100_000):
        with pytest.raises(InvalidResponse, match="no JSON"):
            parse_json(answer(content))
