"""``input_embed_overrides``, ``input_embeds`` and ``input_embeds_b64``: what is read, and what is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tessera import admission, carry, config
from tessera.capabilities.inject.decoded import Decoded
from tessera.capabilities.inject.model import Model
from tessera.capabilities.inject.pending import PerPrompt, Prompts, overrides_of
from tessera.capabilities.inject.projections import Projection, Projections
from tessera.capabilities.registry import BY_NAME
from tessera.capability import Server
from tessera.carry import Live
from tessera.errors import BadRequest, StartRefused, TooLarge
from tessera_testing.carried import options

FIELD = "input_embed_overrides"
H = 8
ROWS = torch.arange(2 * H, dtype=torch.float32).reshape(2, H) / 8


def model(dtype: torch.dtype = torch.float32, *, enabled: bool = True, megabytes: int = 1) -> Model:
    """A model of 8 values and 32 tokens that knows one projection, from 3."""
    weight = torch.ones(H, 3)
    return Model(enabled, dtype, 32, Projections(H, {"three": Projection(weight)}), 1e4, megabytes * 2**20)


def b64(vectors: torch.Tensor) -> str:
    """Little-endian bytes."""
    return base64.b64encode(vectors.contiguous().view(torch.uint8).numpy().tobytes()).decode()


def overriding(**fields: Any) -> dict[str, Any]:
    """An object of two vectors; None takes a field away."""
    good = {"positions": [1, 5], "embeds": b64(ROWS), "shape": [2, H], "dtype": "float32"}
    return {key: value for key, value in (good | fields).items() if value is not None}


def one(value: Any, served: Model | None = None) -> Decoded:
    """The override of a request with one prompt and one object."""
    _, params, _live = admit(Prompts(input_ids=[1] * 9), {}, served or model(), value)
    return each(params)[0]


def each(params: Any) -> tuple[Decoded, ...]:
    """What the prompt with these sampling parameters injects."""
    found = overrides_of(params)
    return () if found is None else found.each


def admit(prompts: Prompts, params: Any, served: Model, overrides: Any = None) -> tuple[Prompts, Any, Live]:
    """What a request with these prompts becomes, and what has to be held of it."""
    params, live = admit_fields(prompts._asdict() | {FIELD: overrides}, params, served)
    return *prepare(prompts, params, served), live


def admit_fields(fields: dict[str, Any], params: Any, served: Model) -> tuple[Any, Live]:
    """The first half: a route that does not know its prompts."""
    with mock.patch.object(config, "injection", served):
        return admission.admit(fields, params, Server(rows=False))


def prepare(prompts: Prompts, params: Any, served: Model) -> tuple[Prompts, Any]:
    """The second half: SGLang's request."""
    request = SimpleNamespace(**prompts._asdict(), session_params=None, session_id=None)
    with mock.patch.object(config, "injection", served):
        params = BY_NAME["inject"].prepare(request, params)
    return Prompts(**{name: getattr(request, name) for name in Prompts._fields}), params


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bits_of_the_models_dtype_are_kept(dtype: torch.dtype) -> None:
    """What came from the model goes back as it was."""
    vectors = ROWS.to(dtype)
    name = str(dtype).removeprefix("torch.")
    found = one(overriding(embeds=b64(vectors), dtype=name), model(dtype)).vectors
    assert found.dtype is dtype
    assert torch.equal(found, vectors)


def test_what_meets_the_embedding_stays_float32() -> None:
    """It is rounded once, behind the sum."""
    served = model(torch.bfloat16)
    assert one(overriding(), served).vectors.dtype is torch.bfloat16
    assert one(overriding(mode="add"), served).vectors.dtype is torch.float32
    assert one(overriding(scale="norm-matched", embeds=b64(ROWS + 1)), served).vectors.dtype is torch.float32
    assert torch.equal(one(overriding(mode="add", scale=0.5), served).vectors, ROWS * 0.5)


def test_lists() -> None:
    """Integers count as numbers; shape and dtype may be left out."""
    found = one({"positions": [0], "embeds": [[1, 2.5, 3, 4, 5, 6, 7, 8]]})
    assert found.vectors.tolist() == [[1, 2.5, 3, 4, 5, 6, 7, 8]]


def test_projection_by_width_and_by_name() -> None:
    """The only one that fits is taken."""
    for name in (None, "three"):
        found = one(overriding(embeds=[[1, 2, 3], [0, 0, 1]], shape=None, dtype=None, projection=name))
        assert found.vectors.tolist() == [[6] * H, [1] * H]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"embeds": None}, "embeds"),
        ({"embeds": b64(ROWS)[:-4]}, "embeds"),
        ({"embeds": b64(ROWS)[:-2] + "!="}, "embeds"),
        ({"embeds": [[1.0] * H, [1.0] * 7]}, "embeds[1]"),
        ({"embeds": [[1.0] * 7] * 2}, "embeds[0]"),
        ({"embeds": [["1"] * H] * 2}, "embeds"),
        ({"embeds": [[True] * H] * 2, "shape": None}, "embeds"),
        ({"embeds": [[10**400] * H] * 2, "shape": None}, "embeds"),
        ({"embeds": [[1e39] * H] * 2, "shape": None}, "embeds"),
        ({"embeds": [[10001] * H] * 2, "shape": None}, "embeds"),
        ({"embeds": [], "shape": None}, "embeds"),
        ({"embeds": [[]], "shape": None}, "embeds[0]"),
        ({"embeds": [[1.0] * H] * 33}, "embeds"),
        ({"embeds": b64(ROWS * float("nan"))}, "embeds"),
        ({"shape": [2, 7]}, "shape[1]"),
        ({"shape": [2, True]}, "shape[1]"),
        ({"shape": [0, H]}, "shape[0]"),
        ({"shape": [33, H]}, "shape[0]"),
        ({"shape": [2]}, "shape"),
        ({"shape": [1, H], "embeds": [[1.0] * H] * 2}, "shape"),
        ({"dtype": "float64"}, "dtype"),
        ({"dtype": None}, "dtype"),
        ({"mode": "mul"}, "mode"),
        ({"scale": "loud"}, "scale"),
        ({"scale": True}, "scale"),
        ({"scale": 1e30}, "embeds"),
        ({"scale": "norm-matched"}, "embeds"),  # the first row of this one is zero
        ({"positions": [1]}, "positions"),
        ({"positions": [1, -1]}, "positions[1]"),
        ({"positions": [1, 32]}, "positions[1]"),
        ({"positions": [1, 2.0]}, "positions[1]"),
        ({"positions": None}, "positions"),
        ({"token": 5}, "positions"),
        ({"positions": None, "token": ""}, "token"),
        ({"positions": None, "token": "x" * 300}, "token"),
        ({"positions": None, "token": 1.5}, "token"),
        ({"expect_neighbours": {}}, "expect_neighbours"),
        ({"expect_neighbours": {"up": 1}}, "expect_neighbours.up"),
        ({"expect_neighbours": {"left": []}}, "expect_neighbours.left"),
        ({"projection": "four"}, "projection"),
        ({"projection": "three"}, "projection"),
        ({"layer": 3}, "layer"),
    ],
)
def test_refused(fields: dict[str, Any], field: str) -> None:
    """The field is named."""
    zero = ROWS.clone()
    zero[0] = 0
    embeds = {"embeds": b64(zero)} if fields.get("scale") == "norm-matched" else {}
    with pytest.raises(BadRequest) as caught:
        one(overriding(**embeds, **fields))
    assert caught.value.field == f"input_embed_overrides.{field}"


def test_too_large_is_413_before_it_is_decoded() -> None:
    """By what shape and dtype say, whatever the text is."""
    small = Model(
        enabled=True, dtype=torch.float32, context_length=32, projections=Projections(H), max_magnitude=1, max_bytes=60
    )
    with pytest.raises(TooLarge) as caught:
        one(overriding(embeds="x"), small)
    assert caught.value.status == 413


def test_finite_in_the_models_dtype() -> None:
    """70,000 is a float32, and infinite as a float16."""
    served = Model(True, torch.float16, 32, Projections(H), 1e6, 2**20)
    with pytest.raises(BadRequest, match="65504"):
        one({"positions": [0], "embeds": [[70000.0] * H]}, served)


def test_one_value_for_each_prompt() -> None:
    """An object counts for all, a list prompt by prompt; for a single prompt a list is several objects."""
    two = Prompts(text=["a", "b"])
    _, params, live = admit(two, {"n": 2}, model(), overriding())
    assert isinstance(params, dict)
    assert len(each(params)) == 1
    _, params, live = admit(two, {"n": 2}, model(), [None, [overriding(), overriding()]])
    assert [own["n"] for own in params] == [2, 2]
    assert [len(each(own)) for own in params] == [0, 2]
    assert [options(own) for own in params] == [{}, {"inject": ""}]
    _, params, live = admit(Prompts(text="a"), None, model(), [overriding(), overriding()])
    assert len(each(params)) == 2
    assert carry.live(params) is live
    with pytest.raises(BadRequest, match="2 prompts"):
        admit(two, {}, model(), [None])
    with pytest.raises(BadRequest, match="2 prompts"):
        admit(two, [{}], model(), [None, overriding()])


def test_on_a_route_that_does_not_know_its_prompts() -> None:
    """The list waits for the request that has them."""
    custom, live = admit_fields({FIELD: [None, overriding()]}, {"custom_params": {"own": 1}}, model())
    assert isinstance(live.state["inject"].found, PerPrompt)
    _, params = prepare(Prompts(text=["a", "b"]), custom, model())
    assert carry.without(params[0]["custom_params"]) == {"own": 1}
    assert [options(own) for own in params] == [{}, {"inject": ""}]
    assert [len(each(own)) for own in params] == [0, 1]
    assert admit_fields({FIELD: None}, None, model())[0] is None


@pytest.mark.parametrize("wrong", [0, False, "", [], [1], "a"])
def test_custom_params_are_an_object(wrong: Any) -> None:
    """Of the prompt that has vectors, and of the others."""
    for overrides in ([overriding(), None], [None, overriding()]):
        with pytest.raises(BadRequest, match="custom_params"):
            admit(Prompts(text=["a", "b"]), {"custom_params": wrong}, model(), overrides)


def test_the_reserved_key_is_ours() -> None:
    """A client's JSON cannot hold what we put there."""
    for params in ({"custom_params": {carry.KEY: "x"}}, [{}, {"custom_params": {carry.KEY: [1]}}]):
        with pytest.raises(BadRequest, match=f"no {carry.KEY}"):
            admit(Prompts(text="a"), params, model())


def test_matrices_become_overrides_of_every_position() -> None:
    """Of filler tokens; one prompt or several, as lists or as base64."""
    content = {"data": b64(ROWS), "shape": [2, H], "dtype": "float32"}
    for fields in ({"input_embeds": ROWS.tolist()}, {"input_embeds_b64": content}):
        prompts, params, live = admit(Prompts(**fields), None, model())
        assert prompts == Prompts(input_ids=[1, 1])
        (found,) = each(params)
        assert found.positions == (0, 1)
        assert torch.equal(found.vectors, ROWS)
    for fields in ({"input_embeds": [ROWS.tolist(), ROWS[:1].tolist()]}, {"input_embeds_b64": [content, content]}):
        prompts, params, live = admit(Prompts(**fields), {"n": 1}, model())
        assert prompts.input_ids[0] == [1, 1]
        assert len(params) == 2
        assert [len(each(own)) for own in params] == [1, 1]
        assert carry.live(params) is live


@pytest.mark.parametrize("beside", ["text", "input_ids", "input_embeds_b64", "overrides"])
def test_a_matrix_stands_alone(beside: str) -> None:
    """SGLang ignores it beside a text."""
    matrix = {"data": b64(ROWS), "shape": [2, H], "dtype": "float32"}
    given = matrix if beside == "input_embeds_b64" else "x"
    others, overrides = ({}, overriding()) if beside == "overrides" else ({beside: given}, None)
    with pytest.raises(BadRequest, match="alone"):
        admit(Prompts(**{"input_embeds": ROWS.tolist()} | others), {}, model(), overrides)


def test_without_the_option() -> None:
    """Ours are refused; SGLang's own field is checked, and left to it where it survives."""
    off, wrong = model(torch.bfloat16, enabled=False), model(torch.float16, enabled=False)
    for prompts, overrides in ((Prompts(text="a"), overriding()), (Prompts(input_embeds_b64={}), None)):
        with pytest.raises(BadRequest, match="--enable-injection"):
            admit(prompts, {}, off, overrides)
    assert admit(Prompts(input_embeds=[[1] * H]), None, off)[:2] == (Prompts(input_embeds=[[1.0] * H]), None)
    with pytest.raises(BadRequest, match="--enable-injection"):
        admit(Prompts(input_embeds=[[1] * H]), None, wrong)
    with pytest.raises(BadRequest):
        admit(Prompts(input_embeds=[[1] * 7]), None, off)
    with pytest.raises(BadRequest, match="--enable-injection"):
        admit_fields({FIELD: overriding()}, None, off)


def test_projections_from_a_folder(tmp_path: Path) -> None:
    """The name is the file's; the bias is optional."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, H)
    save_file({"weight": linear.weight.detach(), "bias": linear.bias.detach()}, tmp_path / "layer20.safetensors")
    found = Projections.load(tmp_path, H)
    vectors = torch.rand(4, 3)
    projected = found.apply("x", "layer20", vectors)
    assert np.allclose(projected.numpy(), linear(vectors).detach().numpy())


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": torch.ones(3, H)},
        {"weight": torch.ones(H)},
        {"bias": torch.ones(H)},
        {"weight": torch.ones(H, 3), "bias": torch.ones(3)},
        {"weight": torch.ones(H, 3), "gain": torch.ones(3)},
        {"weight": torch.full((H, 3), float("nan"))},
    ],
)
def test_a_projection_that_does_not_fit_ends_the_start(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """By the name of its file."""
    save_file(tensors, tmp_path / "odd.safetensors")
    with pytest.raises(StartRefused, match=r"odd\.safetensors"):
        Projections.load(tmp_path, H)


def test_no_projections_where_some_were_asked_for(tmp_path: Path) -> None:
    """An empty folder, a folder that is not there, a file that is none of it."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.safetensors").write_bytes(b"no")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "broken"):
        with pytest.raises(StartRefused, match="--injection-projections"):
            Projections.load(folder, H)


def test_two_projections_of_one_width_need_a_name() -> None:
    """Nothing is guessed."""
    two = Projections(H, {"a": Projection(torch.ones(H, 3)), "b": Projection(torch.ones(H, 3))})
    with pytest.raises(BadRequest, match="a, b"):
        two.apply("x", None, torch.ones(1, 3))


@pytest.mark.parametrize(
    ("prompts", "params"),
    [
        (Prompts(input_ids=[1] * 8), {"n": 70_000}),
        (Prompts(text=["x"] * 70_000), None),
        (Prompts(input_ids=[[1] * 8] * 1000), {"n": 70}),
        (Prompts(input_ids=[[1] * 8] * 1000), [{"n": 70}] * 1000),
    ],
)
def test_copies_of_vectors_are_bounded(prompts: Prompts, params: Any) -> None:
    """Of 64 bytes here, for each prompt and sample; from a route that passes them on the error is kept."""
    with pytest.raises(TooLarge, match="bytes of vectors; allowed: up to 4194304 for all prompts and samples"):
        admit(prompts, params, model(), overriding())
    _, found, _ = admit(prompts, params, model(megabytes=2), overriding())
    assert found


def test_an_error_about_copies_is_kept_for_later() -> None:
    """OpenAI's routes make a 500 of what is raised inside them."""
    params, live = admit_fields({FIELD: overriding()}, None, model())
    assert live.error is None
    with pytest.raises(TooLarge):
        prepare(Prompts(text="x"), {"n": 70_000, **params}, model())
    assert isinstance(live.error, TooLarge)


def test_projected_vectors_are_bounded() -> None:
    """They are more than the body had: 16 rows of 3 become rows of 8."""
    many = [overriding(embeds=b64(torch.ones(16, 3)), shape=[16, 3], positions=list(range(16)))] * 2048
    with pytest.raises(TooLarge, match="bytes of vectors"):
        admit(Prompts(input_ids=[[1] * 32] * 2048), None, model(), [[one] * 8 for one in many])
