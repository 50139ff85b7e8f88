"""Bodies that inject, broken in every way we could think of and in some that hypothesis did.

None may end or hang the server, each refusal names its cause, and after each of them a good request is answered right.
The first are those that ended or hung a stock server. ``TESSERA_FUZZ_BODIES=10000`` runs the full number (with
``--timeout=3600``: half an hour on two busy cores); CI runs fewer.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Container
from functools import partial
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, Vector, relative_error
from tessera_testing.tally import Tally
from tessera_testing.tiny import TINY

H = 256
CONTEXT = 4096
BODIES = int(os.environ.get("TESSERA_FUZZ_BODIES", "300"))
MOST_SECONDS = 20
GOOD_KINDS = 16

VECTOR = (np.random.default_rng(0).standard_normal((2, H)) / 16).astype("<f4")
EMBEDS = base64.b64encode(VECTOR.tobytes()).decode()
PROMPT = list(range(100, 120))
GOOD: dict[str, Any] = {"positions": [3, 9], "embeds": EMBEDS, "shape": [2, H], "dtype": "float32"}
MATRIX = {"data": EMBEDS, "shape": [2, H], "dtype": "float32"}
NO_TEXT = {"sampling_params": {"max_new_tokens": 0}}
ROW = VECTOR[0].tolist()


def body(**fields: Any) -> dict[str, Any]:
    """A request that generates little."""
    return {"sampling_params": {"max_new_tokens": 1}, **fields}


def overriding(**fields: Any) -> dict[str, Any]:
    """The good overrides with other fields; None takes one away."""
    return body(input_ids=PROMPT, input_embed_overrides={k: v for k, v in (GOOD | fields).items() if v is not None})


def whole(rows: int) -> dict[str, Any]:
    """A matrix of zeros."""
    return {"data": base64.b64encode(bytes(rows * H * 2)).decode(), "shape": [rows, H], "dtype": "float16"}


def vector_with(value: float) -> str:
    """The good vectors, but for one value."""
    bad = VECTOR.copy()
    bad[1, 7] = value
    return base64.b64encode(bad.tobytes()).decode()


LAST_VALUES: tuple[Any, ...] = (None, "0.1", True, 1e39, 10001.0, 10**18, [0.1], {})
WIDTHS_AND_DEPTHS: tuple[Any, ...] = (
    [[0.1] * 8] * 4,
    [[0.1] * 512] * 4,
    [[0.1] * H, [0.1] * 8, [0.1] * H],
    [[[0.1] * H], [[0.1] * 8]],
    [],
    [[]],
    [[[]]],
    [[ROW], []],
    ROW,
    [[[ROW]]],
    "x",
    7,
    {},
)
MATRICES: tuple[dict[str, Any], ...] = (
    *({"input_embeds": value} for value in WIDTHS_AND_DEPTHS),
    *({"input_embeds": [[*ROW[:-1], value]]} for value in LAST_VALUES),
    {"text": "def", "input_embeds": [ROW]},
    {"input_ids": PROMPT, "input_embeds": [ROW]},
    {"input_ids": PROMPT, "input_embeds_b64": MATRIX},
    {"input_embeds": [ROW], "input_embed_overrides": GOOD},
    {"input_embeds": [ROW], "input_embeds_b64": MATRIX},
    {"input_embeds": [ROW], "session_params": {"id": "s"}},
    {"input_embeds": [ROW], "session_id": "s"},
    {"input_ids": PROMPT, "positional_embed_overrides": {"embeds": [1], "positions": [0]}},
    {"input_ids": PROMPT, "positional_embed_overrides": [[1], [0]]},
    {"input_embeds_b64": whole(CONTEXT + 1)},
    {"input_embeds_b64": whole(CONTEXT)},
    *(
        {"input_embeds_b64": value}
        for value in ("x", 7, True, {}, [MATRIX, None], [[MATRIX]], MATRIX | {"pickle": "x"})
    ),
)
"""Stock SGLang dies of some of the first, hangs on others, and ignores what stands beside a text."""

WRONG: dict[str, tuple[Any, ...]] = {
    "positions": ([3], [3, 3], [3, 20], [-1, 3], [3, 10**30], [3, 2.5], [3, True], [3, "4"], [], "x", [[3], [9]], {}),
    "shape": (
        [2, 255],
        [1, H],
        [0, H],
        [-2, H],
        [2, -H],
        [2],
        [2, H, 1],
        [2.0, H],
        [True, H],
        [10**12, H],
        [2, 10**12],
    ),
    "dtype": ("float64", "int8", "bfloat16", "float16", "f4", 7, ["float32"], "torch.float32", "object"),
    "embeds": (
        *(EMBEDS[:-4], EMBEDS + "AAAA", EMBEDS[:-1] + "-", EMBEDS.replace("A", "\n", 1), "", 7, [7], [[]]),
        *(character * len(EMBEDS) for character in ("é", "x", "=", "\x00")),
        *(vector_with(value) for value in (np.nan, np.inf, -np.inf)),
    ),
    "scale": ("loud", -1e9, 1e308, "nan", True, [1], {}),
    "mode": ("subtract", 1, ["add"]),
    "expect_neighbours": ({}, {"left": 5}, {"right": "("}, {"up": 5}, 7, [5, 6], {"left": {"left": 5}}),
    "projection": ("nowhere", "../../etc/passwd", "layer3", 7, ["flip"]),
    "token": (103,),
    "layer": (3,),
}
ALTOGETHER: tuple[Any, ...] = ([], "x", 7, True, {}, [GOOD, GOOD], [GOOD, 7], [[GOOD, None]])
OVERRIDES: tuple[dict[str, Any], ...] = (
    *(overriding(**{key: value}) for key, values in WRONG.items() for value in values),
    *(
        overriding(positions=None, token=value)
        for value in (10**9, -1, "no such token", "", "(" * 10**5, 2.5, True, ["("])
    ),
    overriding(embeds="A" * (len(EMBEDS) - 1) + "=", scale="norm-matched"),
    *(body(input_ids=PROMPT, input_embed_overrides=value) for value in ALTOGETHER),
    *(overriding() | {"input_ids": ids} for ids in ([*PROMPT, 10**6], [*PROMPT, -1], [*PROMPT, 10**18], [])),
    body(input_ids=PROMPT) | {"sampling_params": {"custom_params": {"tessera": {"token": "x", "inject": "x"}}}},
    overriding() | {"sampling_params": {"custom_params": 7}},
    overriding() | {"sampling_params": "x"},
    body(input_ids=[PROMPT, PROMPT], input_embed_overrides=[GOOD, GOOD, GOOD]),
)

NOTHING: tuple[Any, ...] = ([[]], [None])
EMPTY = tuple(body(input_ids=PROMPT, input_embed_overrides=value) for value in NOTHING)
"""What injects nothing, and may."""
REFUSED = range(400, 500)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(-5, 5000), max_size=4),
    st.dictionaries(st.sampled_from(["embeds", "shape", "left", "data"]), st.integers(0, 3), max_size=2),
    st.sampled_from([EMBEDS, [ROW], [ROW, ROW], [2, H], "norm-matched", "bfloat16", [3, 9]]),
)
KEYS = (*GOOD, "mode", "scale", "token", "expect_neighbours", "projection", "unknown")


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A route, and a body for it with one to three fields of junk."""
    sent = draw(broken_fields())
    path = draw(st.sampled_from(["/generate", "/generate", "/v1/completions", "/v1/chat/completions"]))
    if path == "/generate" or "input_embed_overrides" not in sent:
        return "/generate", sent
    own = {"model": "tiny", "max_tokens": 1, "input_embed_overrides": sent["input_embed_overrides"]}
    if path == "/v1/completions":
        return path, own | {"prompt": sent["input_ids"]}
    return path, own | {"messages": [{"role": "user", "content": "def area(width, height):"}]}


@st.composite
def broken_fields(draw: st.DrawFn) -> dict[str, Any]:
    """A body for /generate."""
    field = draw(st.sampled_from(["input_embed_overrides", "input_embeds_b64", "input_embeds"]))
    if field == "input_embeds":
        rows: list[Any] = draw(st.lists(st.sampled_from([ROW, ROW, ROW, ROW[:7], [], None]), min_size=1, max_size=3))
        return body(input_embeds=draw(st.sampled_from([rows, [rows, rows], [[rows]]])))
    good, keys = (GOOD, KEYS) if field == "input_embed_overrides" else (MATRIX, tuple(MATRIX))
    wrong = draw(st.dictionaries(st.sampled_from(keys), JUNK, min_size=1, max_size=3))
    value: Any = good | wrong
    value = draw(st.sampled_from([value, [value], [value, None], [[value]], [value, good]]))
    prompts = [PROMPT, PROMPT] if draw(st.booleans()) else PROMPT
    return body(**{field: value}, **({"input_ids": prompts} if field == "input_embed_overrides" else {}))


class Good:
    """Good requests, with vectors and places in turn; each must be computed, for none finds anything in the cache."""

    def __init__(self) -> None:
        reference = HuggingFace(TINY)
        random = np.random.default_rng(1)
        self._sent = 0
        self._kinds: list[tuple[dict[str, Any], Vector]] = []
        for _ in range(GOOD_KINDS):
            places = random.choice(len(PROMPT), 2, replace=False).tolist()
            vectors = (random.standard_normal((2, H)) / 16).astype("<f4")
            overrides = {**GOOD, "positions": places, "embeds": base64.b64encode(vectors.tobytes()).decode()}
            rows = reference.edited(PROMPT, partial(replaced, places=places, vectors=vectors))
            self._kinds.append((overrides, rows.mean(0)))
        self._plain: Vector = reference.states(PROMPT).mean(0)

    def check(self, client: httpx.Client, shown: str) -> None:
        """Send the next one."""
        overrides, expected = self._kinds[self._sent % len(self._kinds)]
        self._sent += 1
        found = ask(client, input_embed_overrides=overrides, extra_key=f"good {self._sent}")
        assert found["cached_tokens"] == 0, shown
        assert relative_error(found["embedding"], expected) <= 1e-5, shown

    def check_plain(self, client: httpx.Client) -> None:
        """The prompt without vectors, from a cache that all the bodies shared."""
        assert relative_error(ask(client)["embedding"], self._plain) <= 1e-5


def replaced(embeds: torch.Tensor, places: list[int], vectors: npt.NDArray[np.float32]) -> torch.Tensor:
    """The edit of the reference."""
    embeds[places] = torch.from_numpy(vectors.copy())
    return embeds


def ask(client: httpx.Client, **fields: Any) -> Any:
    """The mean over the prompt."""
    requested = {"input_ids": PROMPT, "return_embedding": True, **NO_TEXT, **fields}
    return client.post("/generate", json=requested).raise_for_status().json()["meta_info"]


@pytest.fixture(scope="module")
def good() -> Good:
    """What is asked after each body."""
    return Good()


def test_known_bodies(injecting: Server, good: Good, tally: Tally) -> None:
    """Each is refused, but for those that ask for nothing; what stock SGLang dies of comes first."""
    with httpx.Client(base_url=injecting.url, timeout=MOST_SECONDS) as client:
        for sent in (*(body(**fields) for fields in MATRICES), *OVERRIDES):
            check(client, "/generate", sent, good, tally, REFUSED)
        for sent in EMPTY:
            check(client, "/generate", sent, good, tally, {200})
        good.check_plain(client)
        assert client.post("/flush_cache?timeout=30").status_code == 200  # only a server that holds no request does it


def test_unknown_bodies(injecting: Server, good: Good, tally: Tally) -> None:
    """What hypothesis makes of them; the same bodies every time."""
    with httpx.Client(base_url=injecting.url, timeout=MOST_SECONDS) as client:

        @settings(max_examples=BODIES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
        @given(broken())
        def one(sent: tuple[str, dict[str, Any]]) -> None:
            check(client, *sent, good, tally, {200, *REFUSED})

        one()
        good.check_plain(client)
        assert client.post("/flush_cache?timeout=30").status_code == 200


def check(
    client: httpx.Client, path: str, sent: dict[str, Any], good: Good, tally: Tally, allowed: Container[int]
) -> None:
    """An allowed status, and a 4xx names field and cause; the next good request is right."""
    content = json.dumps(sent)  # with NaN and Infinity, which JSON does not have and SGLang reads
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    shown = f"{path} {content[:300]} -> {answer.status_code} {answer.text[:300]}"
    assert answer.status_code in allowed, shown
    tally.add(answer)
    if answer.status_code != 200:
        returned = answer.json()
        error = returned.get(
            "error", returned
        )  # SGLang has two forms of its own, which name their cause in the message alone
        assert error["message"], shown
        if "param" in error and error["code"] in ("bad_request", "too_large"):
            assert error["param"], shown
            assert "allowed" in error["message"], shown
    good.check(client, shown)
