"""The schemas of ``return_embedding`` and ``return_hidden_states``, without any engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import admission, carry
from tessera.capabilities.embed.options import EmbedFields, EmbedOptions, Encoding, Pooling, options_of
from tessera.capabilities.registry import BY_NAME
from tessera.capabilities.states.options import Format, StateOptions
from tessera.capability import Server
from tessera.errors import BadRequest
from tessera.fields import read
from tessera.prompts import check_prompts
from tessera.rows.reads import Over
from tessera_testing.carried import options

SERVER = Server(rows=True, hidden_size=64)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
VALID = st.builds(
    EmbedOptions,
    st.sampled_from(Pooling),
    st.sampled_from(Over),
    st.booleans(),
    st.none() | st.integers(1, 64),
    st.sampled_from(Encoding),
)


def embedding(value: object, hidden_size: int | None = None) -> EmbedOptions | None:
    """What ``return_embedding`` asks for."""
    return options_of(read({"return_embedding": value}, EmbedFields), hidden_size)


def admit(params: Any = None, server: Server = SERVER, /, **fields: object) -> Any:
    """Sampling parameters that carry what these fields ask for."""
    found, _ = admission.admit(fields, params, server)
    return found


@pytest.mark.parametrize("value", [None, False])
def test_values_that_request_nothing(value: object) -> None:
    """Absent, null and false ask for nothing."""
    assert embedding(value) is None
    assert admit(return_embedding=value) is None


def test_defaults() -> None:
    """True and an empty object are the mean over the prompt, as numbers."""
    expected = EmbedOptions(Pooling.MEAN, Over.PROMPT, False, None, Encoding.FLOAT)
    assert embedding(True) == embedding({}) == expected


@given(VALID)
def test_wire_round_trip(options: EmbedOptions) -> None:
    """What rides to the scheduler is read back as it was."""
    embed = BY_NAME["embed"]
    assert embed.from_wire(embed.to_wire(options)) == options


@given(JSON)
def test_any_json_is_parsed_or_refused_by_name(value: Any) -> None:
    """No value escapes as another exception, and a refusal names the field."""
    refused = None
    try:
        admit(return_embedding=value)
    except BadRequest as error:
        refused = error
    if refused is not None:
        assert refused.field.startswith("return_embedding")
        assert len(str(refused)) < 500


@given(st.sampled_from(["embed", "states", carry.TOKEN]), JSON)
def test_reserved_keys_are_not_for_clients(key: str, value: Any) -> None:
    """Whatever a client writes there, also what we would have written ourselves."""
    for written in (value, {key: value}, {carry.TOKEN: "0 ", "embed": "{}"}):
        params = {"custom_params": {carry.KEY: written}}
        for embedding in (None, True):
            with pytest.raises(BadRequest, match="no tessera: it is reserved; use the request's fields"):
                admit(params, return_embedding=embedding)


def test_each_request_has_a_token_of_its_own() -> None:
    """Two requests with the same id must not be taken for each other."""
    first, second = (carry.take(admit(return_embedding=True)).token for _ in range(2))
    assert first
    assert second
    assert first != second


def test_admission_keeps_what_it_does_not_own() -> None:
    """Other sampling parameters and custom parameters stay, and the client's objects are not changed."""
    params = {"temperature": 0.5, "custom_params": {"own": 1}}
    states = {"return_hidden_states": "last", "hidden_states_format": "base64"}
    admitted = admit(params, return_embedding={"pooling": "max"}, **states)
    assert admitted["temperature"] == 0.5
    assert admitted["custom_params"]["own"] == 1
    both = {"embed": EmbedOptions(pooling=Pooling.MAX), "states": StateOptions(last=True, format=Format.BASE64)}
    assert options(admitted) == both
    assert params == {"temperature": 0.5, "custom_params": {"own": 1}}


@pytest.mark.parametrize("wrong", [0, False, "", [], [1], "a"])
def test_custom_params_are_an_object(wrong: Any) -> None:
    """What is empty, too, is told what it should be: nothing a client writes is taken for nothing."""
    with pytest.raises(BadRequest, match="custom_params"):
        admit({"custom_params": wrong}, return_embedding=True)


def test_admission_of_a_list_of_sampling_params() -> None:
    """Each prompt's parameters carry the options."""
    admitted = admit([{}, {"temperature": 1}], return_embedding=True)
    assert [options(params) for params in admitted] == [{"embed": EmbedOptions()}] * 2


def test_admission_of_a_list_of_states() -> None:
    """One value for each prompt, as SGLang's field allows."""
    admitted = admit({"temperature": 1}, return_hidden_states=[True, False, "last"])
    states = [options(params).get("states") for params in admitted]
    assert states == [StateOptions(), None, StateOptions(last=True)]
    assert [params["temperature"] for params in admitted] == [1, 1, 1]
    for values in ([True] * 3, [True]):
        with pytest.raises(BadRequest, match="return_hidden_states"):
            admit([{}, {}], return_hidden_states=values)


def test_admission_without_the_flag() -> None:
    """Asking is an error that names the flag; not asking is none."""
    bare = Server(rows=False)
    assert admit(None, bare, return_embedding=None) is None
    assert admit({"n": 2}, bare, return_embedding=False) == {"n": 2}
    with pytest.raises(BadRequest, match="--enable-return-hidden-states"):
        admit(None, bare, return_embedding=True)


@pytest.mark.parametrize("params", ["text", 7, [1]])
def test_admission_of_broken_sampling_params(params: Any) -> None:
    """Asked with sampling parameters that are none."""
    with pytest.raises(BadRequest, match=r"sampling_params"):
        admit(params, return_embedding=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (False, None),
        (True, StateOptions()),
        ("last", StateOptions(last=True)),
        ({}, StateOptions()),
        ({"over": "prompt"}, StateOptions(over=Over.PROMPT)),
        ({"positions": [3, 0, 3]}, StateOptions(positions=(3, 0, 3))),
        ({"positions": None, "over": "output"}, StateOptions(over=Over.OUTPUT)),
    ],
)
def test_states(value: object, expected: StateOptions | None) -> None:
    """What ``return_hidden_states`` may be; what rides is read back as it was."""
    assert options(admit(return_hidden_states=value)).get("states") == expected


@pytest.mark.parametrize(
    ("value", "form", "field"),
    [
        (1, None, "return_hidden_states"),
        ("first", None, "return_hidden_states"),
        ({"layer": 3}, None, "return_hidden_states.layer"),
        ({"over": "all tokens"}, None, "return_hidden_states.over"),
        ({"positions": []}, None, "return_hidden_states.positions"),
        ({"positions": 3}, None, "return_hidden_states.positions"),
        ({"positions": [0, -1]}, None, "return_hidden_states.positions[1]"),
        ({"positions": [True]}, None, "return_hidden_states.positions[0]"),
        ({"positions": [0] * 65_537}, None, "return_hidden_states.positions"),
        ({"positions": [0], "over": "prompt"}, None, "return_hidden_states.positions"),
        (True, "pickle", "hidden_states_format"),
        (False, 3, "hidden_states_format"),
    ],
)
def test_bad_states(value: object, form: object, field: str) -> None:
    """Each refusal names its field."""
    with pytest.raises(BadRequest) as refused:
        admit(return_hidden_states=value, hidden_states_format=form)
    assert refused.value.field == field


@given(JSON)
def test_any_json_as_states(value: Any) -> None:
    """No value escapes as another exception."""
    try:
        admit(return_hidden_states=value)
    except BadRequest as error:
        assert error.field.startswith("return_hidden_states")  # noqa: PT017 - either outcome is fine


@pytest.mark.parametrize(
    ("prompts", "field"),
    [
        ([1024], "input_ids[0]"),
        ([3, -1], "input_ids[1]"),
        ([[3], [4, 5, 10**30]], "input_ids[1][2]"),
        ([True, 99_999], "input_ids[0]"),  # an integer in Python, and no id
        ([[3], [4, True]], "input_ids[1][1]"),
    ],
)
def test_token_ids_that_the_model_does_not_have(prompts: Any, field: str) -> None:
    """The first one is named."""
    with pytest.raises(BadRequest) as caught:
        check_prompts("input_ids", prompts, 1024)
    assert caught.value.field == field


@pytest.mark.parametrize(("prompts", "field"), [([], "p"), ([[]], "p[0]"), ([[3], []], "p[1]")])
@pytest.mark.parametrize("vocabulary", [0, 1024])
def test_prompts_without_tokens(prompts: Any, field: str, vocabulary: int) -> None:
    """A prefill of nothing ends the scheduler, whatever the model."""
    with pytest.raises(BadRequest) as caught:
        check_prompts("p", prompts, vocabulary)
    assert caught.value.field == field


@pytest.mark.parametrize("prompts", [None, "text", ["text"], [0, 1023], [[0], [1023]]])
def test_other_prompts_pass(prompts: Any) -> None:
    """What is no list of token ids is SGLang's to judge; without a model nothing is known."""
    check_prompts("input_ids", prompts, 1024)
    check_prompts("input_ids", [10**9], 0)
