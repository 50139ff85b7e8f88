"""SGLang makes requests of requests: what the first of them said stays, and no default overrules it."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from sglang.srt.managers import io_struct

from tessera import carry, config
from tessera.capabilities.embed.options import EmbedOptions
from tessera.capabilities.fingerprints.options import FingerprintOptions
from tessera.capabilities.states.options import StateOptions
from tessera.errors import BadRequest
from tessera.flags import Flags
from tessera_patches.http.openai import CompletionRequest, _fields, _handle
from tessera_patches.http.records import _as_sent
from tessera_patches.http.request import GenerateReqInput
from tessera_testing.carried import options


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that fingerprints every response; SGLang's requests are ours there."""
    monkeypatch.setattr(io_struct, "GenerateReqInput", GenerateReqInput)
    monkeypatch.setattr(config, "active", config.Settings(rows=True, hidden_size=8, vocabulary=1024, context=100))
    monkeypatch.setattr(config, "flags", Flags(toploc_verification=True, toploc_verification_topk=4))


def requests_of(**fields: Any) -> tuple[GenerateReqInput, list[GenerateReqInput]]:
    """The request of a client, and those that SGLang makes of it."""
    whole = GenerateReqInput(input_ids=[[5, 6], [7, 8]], **fields)
    whole.normalize_batch_and_arguments()
    return whole, [whole[i] for i in range(2)]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"return_toploc_fingerprints": False}, {}),
        ({"return_toploc_fingerprints": False, "return_embedding": True}, {"embed": EmbedOptions()}),
        ({"toploc_nonce": "n"}, {"fingerprints": FingerprintOptions("n", 4)}),
        ({}, {"fingerprints": FingerprintOptions(topk=4)}),
    ],
)
def test_what_was_admitted_stays(said: dict[str, Any], expected: dict[str, Any]) -> None:
    """Of each prompt of a batch."""
    whole, parts = requests_of(**said)
    assert [options(part.sampling_params) for part in parts] == [expected] * 2
    if expected:
        tokens = {carry.take(part.sampling_params).token for part in parts}
        live = whole.tessera_live
        assert live is not None
        assert tokens == {live.token}
        assert all(part.tessera_live is live for part in parts)


def test_states_of_each_prompt() -> None:
    """Those that ask for none beside one that does; SGLang is asked for none at all."""
    whole, parts = requests_of(return_hidden_states=[False, "last"], return_toploc_fingerprints=False)
    assert [options(part.sampling_params) for part in parts] == [{}, {"states": StateOptions(last=True)}]
    assert not any(whole.return_hidden_states)
    assert not any(part.return_hidden_states for part in parts)


def test_no_record_has_the_secret() -> None:
    """Neither of a request that asked for something nor of another; who may not send it must not read it."""
    for said in ({"return_embedding": True}, {"return_toploc_fingerprints": False}):
        shown = _as_sent(GenerateReqInput(text="a", **said))
        assert carry._SECRET.encode() not in pickle.dumps(shown), said


class Serving:
    """SGLang's handler of a route."""

    async def handle_request(self, request: Any, _: Any) -> Any:
        """It makes requests of its own."""
        custom = {"custom_params": request.custom_params}
        return GenerateReqInput(
            text=request.prompt, sampling_params=custom, return_hidden_states=request.return_hidden_states
        )


@pytest.mark.parametrize("value", [[True, True, True], [7, True], [True, "last"], [False, False]])
def test_a_list_on_a_route_of_openai(value: list[Any]) -> None:
    """Refused by its name, whatever its length and its values: one value counts for all prompts there."""
    request = CompletionRequest(model="m", prompt=["a", "b"], max_tokens=5, return_hidden_states=value)
    nobody: Any = None
    with pytest.raises(BadRequest) as refused:
        asyncio.run(_handle(Serving(), request, nobody, _fields(request), 5, "text_completion", 0))
    assert str(refused.value) == f"return_hidden_states: got a list of {len(value)}; allowed: one value"
