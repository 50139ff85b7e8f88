"""The schema of ``return_embedding``, without any engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.admission import EMBED_KEY, STATES_KEY, TOKEN_KEY, admit_embedding, admit_states, asked, check_prompts
from tessera.embed.options import EmbedOptions, Encoding, Pooling
from tessera.errors import BadRequest
from tessera.rows.span import Over
from tessera.states.options import Format, StateOptions

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


@pytest.mark.parametrize("value", [None, False])
def test_nothing_asked(value: object) -> None:
    """Absent, null and false ask for nothing."""
    assert EmbedOptions.parse(value) is None


def test_defaults() -> None:
    """True and an empty object are the mean over the prompt, as numbers."""
    expected = EmbedOptions(Pooling.MEAN, Over.PROMPT, False, None, Encoding.FLOAT)
    assert EmbedOptions.parse(True) == EmbedOptions.parse({}) == expected


@given(VALID)
def test_wire_round_trip(options: EmbedOptions) -> None:
    """What rides to the scheduler is read back as it was."""
    assert EmbedOptions.from_wire(options.to_wire()) == options


@given(JSON)
def test_any_json_is_parsed_or_refused_by_name(value: Any) -> None:
    """No value escapes as another exception, and a refusal names the field."""
    refused = None
    try:
        EmbedOptions.parse(value, hidden_size=64)
    except BadRequest as error:
        refused = error
    if refused is not None:
        assert refused.field.startswith("return_embedding")
        assert len(str(refused)) < 500


@given(st.sampled_from([EMBED_KEY, STATES_KEY, TOKEN_KEY]), JSON)
def test_reserved_keys_are_not_for_clients(key: str, value: Any) -> None:
    """Whatever a client writes there, also what we would have written ourselves."""
    for written in (value, EmbedOptions().to_wire(), StateOptions().to_wire()):
        params = {"custom_params": {key: written}}
        for asking in (None, True):
            with pytest.raises(BadRequest, match="use return_embedding"):
                admit_embedding(asking, params, enabled=True, hidden_size=8)


def test_each_request_has_a_token_of_its_own() -> None:
    """Two requests with the same id must not be taken for each other."""
    first, second = (asked(admit_embedding(True, {}, enabled=True, hidden_size=8)).token for _ in range(2))
    assert first
    assert second
    assert first != second


def test_admission_keeps_what_it_does_not_own() -> None:
    """Other sampling parameters and custom parameters stay, and the client's objects are not changed."""
    params = {"temperature": 0.5, "custom_params": {"own": 1}}
    admitted: Any = admit_embedding({"pooling": "max"}, params, enabled=True, hidden_size=8)
    admitted = admit_states("last", "base64", admitted)
    assert admitted["temperature"] == 0.5
    assert admitted["custom_params"]["own"] == 1
    both = EmbedOptions(pooling=Pooling.MAX), StateOptions(last=True, format=Format.BASE64)
    assert asked(admitted)[:2] == both
    assert params == {"temperature": 0.5, "custom_params": {"own": 1}}


@pytest.mark.parametrize("wrong", [0, False, "", [], [1], "a"])
def test_custom_params_are_an_object(wrong: Any) -> None:
    """What is empty, too, is told what it should be: nothing a client writes is taken for nothing."""
    with pytest.raises(BadRequest, match="custom_params"):
        admit_embedding(True, {"custom_params": wrong}, enabled=True, hidden_size=8)


def test_admission_of_a_list_of_sampling_params() -> None:
    """Each prompt's parameters carry the options."""
    admitted: Any = admit_embedding(True, [{}, {"temperature": 1}], enabled=True, hidden_size=8)
    assert [asked(params).embed for params in admitted] == [EmbedOptions(), EmbedOptions()]


def test_admission_of_a_list_of_states() -> None:
    """One value for each prompt, as SGLang's field allows."""
    admitted: Any = admit_states([True, False, "last"], None, {"temperature": 1})
    assert [asked(params).states for params in admitted] == [StateOptions(), None, StateOptions(last=True)]
    with pytest.raises(BadRequest, match="return_hidden_states"):
        admit_states([True], None, [{}, {}])


def test_admission_without_the_flag() -> None:
    """Asking is an error that names the flag; not asking is none."""
    assert admit_embedding(None, None, enabled=False, hidden_size=None) is None
    assert admit_embedding(False, {"n": 2}, enabled=False, hidden_size=None) == {"n": 2}
    with pytest.raises(BadRequest, match="--enable-return-hidden-states"):
        admit_embedding(True, None, enabled=False, hidden_size=None)


@pytest.mark.parametrize("params", ["text", 7, [1]])
def test_admission_of_broken_sampling_params(params: Any) -> None:
    """Asked with sampling parameters that are none."""
    with pytest.raises(BadRequest, match=r"sampling_params"):
        admit_embedding(True, params, enabled=True, hidden_size=8)


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
    options = StateOptions.parse(value)
    assert options == expected
    if options is not None:
        assert StateOptions.from_wire(options.to_wire()) == options


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
        StateOptions.parse(value, form)
    assert refused.value.field == field


@given(JSON)
def test_any_json_as_states(value: Any) -> None:
    """No value escapes as another exception."""
    try:
        StateOptions.parse(value)
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
