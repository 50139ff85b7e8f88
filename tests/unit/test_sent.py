"""What SGLang's logs, records and dumps show of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera import admission, carry, sent
from tessera.capability import Server

SERVER = Server(rows=True, hidden_size=8, deterministic=True)


def admitted(custom: Any = None, states: Any = True) -> Any:
    """Sampling parameters of a request with an embedding and states."""
    of_states = {"return_hidden_states": states, "hidden_states_format": "base64"}
    fields = {"return_embedding": {"over": "all"}, **of_states}
    return admission.admit(fields, {"n": 1, "custom_params": custom}, SERVER)[0]


def test_the_clients_own_stay() -> None:
    """Without our keys, which have a secret; custom parameters that were only ours are none."""
    assert sent.plain(admitted({"theirs": 1})) == {"n": 1, "custom_params": {"theirs": 1}}
    assert sent.plain(admitted()) == {"n": 1, "custom_params": None}
    untouched = {"custom_params": {"theirs": 1}}
    assert sent.plain(untouched) is untouched
    assert (sent.carries(untouched), sent.carries(None), sent.carries(admitted())) == (False, False, True)


@pytest.mark.parametrize("states", [True, "last", {"over": "output"}, {"positions": [3, 0]}])
def test_fields_are_what_a_client_may_send(states: Any) -> None:
    """Admitted again, they ask for the same; json writes them."""
    params = admitted(states=states)
    fields = json.loads(json.dumps(sent.fields(params)))
    assert fields["return_hidden_states"] == states
    again, _ = admission.admit(fields, {}, SERVER)
    assert sent.fields(again) == sent.fields(params)


@pytest.mark.parametrize(
    "fields",
    [
        {"return_input_ids": True, "return_output_ids": True},
        {"return_toploc_fingerprints": True, "toploc_nonce": "n"},
        {"return_row_hashes": True, "return_output_ids": True},
    ],
)
def test_other_fields(fields: dict[str, Any]) -> None:
    """As they came."""
    assert sent.fields(admission.admit(fields, {}, SERVER)[0]) == fields


def test_prompts_that_differ() -> None:
    """A list for what differs, one value for what does not; vectors are only said to have been there."""
    params = [admitted(states="last"), admitted(states=False)]
    params[1] = carry.put(params[1], carry.Live(), {"inject": ""})
    fields = sent.fields(params)
    assert fields["return_hidden_states"] == ["last", None]
    assert fields["input_embed_overrides"] == [None, "(vectors)"]
    assert fields["return_embedding"]["over"] == "all"
