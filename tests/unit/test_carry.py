"""The one reserved key of sampling parameters: what is put there is taken again, and a client cannot write it."""

from __future__ import annotations

import gc
from typing import Any

import orjson
import pytest

from tessera import carry
from tessera.carry import KEY, NOTHING, PROMPT, TAIL, TOKEN, Live
from tessera.errors import BadRequest


def test_put_and_take() -> None:
    """As it was, also through JSON; a client's own parameters stay, and its objects are not changed."""
    live = Live()
    params = {"temperature": 1, "custom_params": {"own": [1]}}
    put = carry.put(params, live, {"embed": "{}", "states": '{"last":true}'}, **{TAIL: 3, PROMPT: 2})
    carried = carry.take(orjson.loads(orjson.dumps(put)))
    assert carried == (live.token, {"embed": "{}", "states": '{"last":true}'}, 3, 2)
    assert (put["temperature"], carry.without(put["custom_params"])) == (1, {"own": [1]})
    assert params == {"temperature": 1, "custom_params": {"own": [1]}}
    assert carry.without(carry.put({}, live, {})["custom_params"]) is None


def test_put_again_adds() -> None:
    """Marks that are None are left out."""
    live = Live()
    put = carry.put(carry.put({}, live, {"embed": "{}"}), live, {"inject": ""}, **{TAIL: None})
    assert carry.take(put) == (live.token, {"embed": "{}", "inject": ""}, None, 0)
    assert carry.take(carry.with_wire(put, "inject", "x")).wires == {"embed": "{}", "inject": "x"}
    assert carry.take(carry.without_capability(put, "inject")).wires == {"embed": "{}"}
    assert [carry.uses(put, name) for name in ("embed", "inject", "states")] == [True, True, False]
    assert carry.uses([{}, put], "embed")


@pytest.mark.parametrize("params", [None, {}, [], "x", {"custom_params": None}, {"custom_params": {"own": 1}}])
def test_nothing(params: object) -> None:
    """Whatever the parameters are."""
    assert carry.take(params) is NOTHING
    assert carry.live(params) is None


@pytest.mark.parametrize(
    "written", [None, 0, "", "x", [], {}, {TOKEN: None}, {TOKEN: 5}, {TOKEN: "0 "}, {"embed": "{}"}, {TOKEN: [1]}]
)
def test_a_clients_own_key_is_refused(written: Any) -> None:
    """With 400; its object has no token of ours."""
    with pytest.raises(BadRequest) as refused:
        carry.take({"custom_params": {KEY: written}})
    assert (refused.value.status, refused.value.field) == (400, "sampling_params.custom_params")
    assert refused.value.allowed == "no tessera: it is reserved; use the request's fields"


def test_live_is_found_as_long_as_it_is_held() -> None:
    """By any of the request's prompts; two requests are never taken for each other."""
    live, other = Live(), Live()
    assert live.token != other.token
    put = carry.put({}, live, {"embed": "{}"})
    assert carry.live(put) is carry.live([put, {}]) is live
    del live
    gc.collect()
    assert carry.live(put) is None
    assert carry.live(carry.put({}, other, {})) is other


@pytest.mark.parametrize("params", ["text", 7, [1], {"custom_params": 0}, {"custom_params": []}])
def test_parameters_that_are_none(params: object) -> None:
    """Nothing can be put there."""
    with pytest.raises(BadRequest, match="sampling_params"):
        carry.check_params(params)
    assert carry.check_params(None) == {}
