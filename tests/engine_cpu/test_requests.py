"""Bad values of ``return_embedding`` get a 400 that names field, value and what is allowed."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, relative_error

BAD: list[tuple[Any, str, str]] = [
    (5, "return_embedding", "true, false, or an object"),
    ("mean", "return_embedding", "true, false, or an object"),
    ([True], "return_embedding", "true, false, or an object"),
    ({"pool": "mean"}, "return_embedding.pool", "no such key"),
    ({"pooling": "median"}, "return_embedding.pooling", "mean | last | max | first"),
    ({"pooling": None}, "return_embedding.pooling", "mean | last | max | first"),
    ({"over": ["prompt"]}, "return_embedding.over", "prompt | output | all"),
    ({"over": "output"}, "return_embedding.over", "max_new_tokens of 2 or more"),
    ({"normalize": 1}, "return_embedding.normalize", "true | false"),
    ({"dimensions": 0}, "return_embedding.dimensions", "an integer, 1 or more"),
    ({"dimensions": 257}, "return_embedding.dimensions", "1 to 256"),
    ({"dimensions": True}, "return_embedding.dimensions", "an integer, 1 or more"),
    ({"dimensions": 1.5}, "return_embedding.dimensions", "an integer, 1 or more"),
    ({"encoding_format": "hex"}, "return_embedding.encoding_format", "float | base64"),
    ({"pooling": "x" * 10_000}, "return_embedding.pooling", "mean | last | max | first"),
    ({"x" * 10_000: 1}, "return_embedding." + "x" * 183 + "…", "no such key"),
]


def post(server: Server, **fields: Any) -> httpx.Response:
    """A request of one new token."""
    body = {"input_ids": [10, 11, 12], "sampling_params": {"max_new_tokens": 1}, **fields}
    return httpx.post(f"{server.url}/generate", json=body, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("value", "field", "allowed"), BAD, ids=lambda value: str(value)[:40])
def test_bad_value(server: Server, value: Any, field: str, allowed: str, stream: bool) -> None:
    """Streams too answer with the status 400, not with an error inside a 200."""
    answer = post(server, return_embedding=value, stream=stream)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert error["code"] == "bad_request"
    assert error["message"].startswith(f"{field}: got ")
    assert allowed in error["message"]
    assert len(error["message"]) < 500


@pytest.mark.parametrize("key", ["embed", "states", "token"])
@pytest.mark.parametrize("value", ["{}x", "{}", 7, '{"pooling":"mean"}', "[" * 100_000, None])
def test_reserved_keys_are_not_for_clients(server: Server, key: str, value: Any) -> None:
    """Nothing reaches the scheduler that the schema has not seen."""
    for written in (value, {key: value}, {"token": "0 ", "embed": value}):
        answer = post(server, sampling_params={"max_new_tokens": 1, "custom_params": {"tessera": written}})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "sampling_params.custom_params"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/generate", {"input_ids": [10, 1024]}, "input_ids[1]"),
        ("/generate", {"input_ids": [-1]}, "input_ids[0]"),
        ("/generate", {"input_ids": [[10], [11, 2**40]]}, "input_ids[1][1]"),
        ("/v1/completions", {"model": "tiny", "prompt": [10, 1024]}, "prompt[1]"),
        ("/v1/completions", {"model": "tiny", "prompt": [[10], [1024]]}, "prompt[1][0]"),
    ],
)
def test_token_ids_that_the_model_does_not_have(server: Server, path: str, body: dict[str, Any], field: str) -> None:
    """One of them ends the stock server; here it is a 400, and the next request is answered."""
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert post(server).status_code == 200


def test_a_request_id_used_again_at_once(server: Server, hf: HuggingFace) -> None:
    """Results are told apart by a token of ours, not by the id that a client chose."""
    prompts = [list(range(start, start + 40)) for start in range(50, 90)]
    body = {"sampling_params": {"max_new_tokens": 0}, "return_embedding": True, "rid": "the-same"}

    async def race() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            return await asyncio.gather(*(client.post("/generate", json=body | {"input_ids": p}) for p in prompts))

    answered = 0
    for prompt, answer in zip(prompts, asyncio.run(race()), strict=True):
        if answer.status_code == 200:  # SGLang refuses an id that is in use
            answered += 1
            expected = hf.pooled(prompt, [], "mean", "prompt")
            assert relative_error(answer.json()["meta_info"]["embedding"], expected) <= 1e-5
    assert answered > 0


def test_custom_params_of_the_client_are_kept_apart(server: Server) -> None:
    """Other custom parameters are carried on; something that is no object is refused."""
    good = post(server, return_embedding=True, sampling_params={"max_new_tokens": 1, "custom_params": {"own": 1}})
    assert good.status_code == 200
    bad = post(server, return_embedding=True, sampling_params={"max_new_tokens": 1, "custom_params": "own"})
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "sampling_params.custom_params"


def test_too_long_a_prompt_is_sglangs_own_error(server: Server) -> None:
    """Asking for an embedding changes nothing about it."""
    answers = [post(server, input_ids=[9] * 5000, return_embedding=requested) for requested in (False, True)]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].json() == answers[1].json()


def test_without_the_flag(bare: Server) -> None:
    """A server that keeps no rows says which flag it needs, and answers everything else."""
    answer = post(bare, return_embedding=True)
    assert answer.status_code == 400
    assert "--enable-return-hidden-states" in answer.json()["error"]["message"]
    assert post(bare, return_embedding=False).status_code == 200
    assert "scheduler" not in "".join(line for line in bare.log.splitlines() if "Applied" in line)


def test_disabled_is_the_stock_server(stock: Server) -> None:
    """``TESSERA_DISABLE=1``: no hook in any process, and the field is as unknown as it is to SGLang."""
    answer = post(stock, return_embedding={"pooling": 7})
    assert answer.status_code == 200
    assert "embedding" not in answer.json()["meta_info"]
    assert "Applied" not in stock.log


def test_server_info_says_what_is_on(server: Server) -> None:
    """Version, features and seams of each process, beside what SGLang tells."""
    info = httpx.get(f"{server.url}/server_info", timeout=60).json()
    assert info["version"] == version("sglang")
    assert info["tessera"]["version"] == version("sglang-tessera")
    assert info["tessera"]["on"] == ["rows"]
    assert any(target.endswith("ModelRunner.forward") for target in info["tessera"]["seams"]["scheduler"])


def test_server_info_says_that_nothing_is_on(bare: Server) -> None:
    """The scheduler has no hook, the main process those that read options."""
    off = httpx.get(f"{bare.url}/server_info", timeout=60).json()["tessera"]
    assert (off["on"], off["seams"]["scheduler"]) == ([], [])
    assert len(off["seams"]["main"]) == 10


def test_server_info_lists_fingerprints(fingerprinting: Server) -> None:
    """Also by SGLang's old name."""
    for path in ("/server_info", "/get_server_info"):
        info = httpx.get(f"{fingerprinting.url}{path}", timeout=60).json()
        assert info["tessera"]["on"] == ["rows", "fingerprints"]
