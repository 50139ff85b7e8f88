"""Long lists in several requests."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from tessera.client import (
    Client,
    ConnectionFailed,
    Embedding,
    Embeddings,
    InvalidResponse,
    RequestRefused,
    Retry,
    calls,
    chunks,
)
from tessera.client.progress import Bar
from tessera.client.prompts import as_prompts
from tessera.client.status import Answer


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_chunks_cover_all(count: int) -> None:
    """In order, none twice, none empty."""
    texts = ["a"] * count
    parts = list(chunks.request_slices(texts))
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    assert all(0 < part.stop - part.start <= chunks.CHUNK for part in parts)


def test_long_texts_go_in_smaller_chunks() -> None:
    """And one that is longer than a chunk goes alone."""
    size = chunks.CHUNK_CHARACTERS // 2
    texts = ["a" * size, "b" * size, "c", "d" * 3 * size, "e"]
    assert [(part.start, part.stop) for part in chunks.request_slices(texts)] == [(0, 2), (2, 3), (3, 4), (4, 5)]


@pytest.mark.parametrize(
    ("field", "first", "expected"),
    [
        ("input[44]", 256, "texts[300]"),
        ("input[44][7]", 256, "texts[300][7]"),
        ("input[0]", 0, "texts[0]"),
        ("input[0][2]", None, "text[2]"),
        ("pooling", 256, "pooling"),
        ("input", 256, "input"),
    ],
)
def test_errors_name_the_item_of_the_callers_list(field: str, first: int | None, expected: str) -> None:
    """Not that of the request in which it went."""
    body = {"error": {"message": f"{field}: got ''; allowed: x", "param": field, "code": "bad_request"}}
    answer = Answer(400, {}, json.dumps(body).encode())
    with pytest.raises(RequestRefused) as refused:
        calls.encode_batch(["a"] * 45, {}, 1.0, first).read(answer)
    assert refused.value.field == expected
    assert str(refused.value) == f"HTTP 400: {expected}: got ''; allowed: x"


@pytest.mark.parametrize("single", ["abc", "", [1, 2], np.array([1, 2])])
def test_one_prompt_is_no_list(single: Any) -> None:
    """Its letters or token ids are no prompts."""
    with Client("http://127.0.0.1:9") as client:
        with pytest.raises(TypeError, match="put it into a list"):
            client.encode_batch(single)
        with pytest.raises(TypeError, match="put it into a list"):
            client.generate_candidates_batch(single, 2)


@pytest.mark.parametrize("given", [5, None, b"abc", {"a": 1}, {"a"}])
def test_what_holds_no_prompts_in_their_order(given: Any) -> None:
    """Is shown."""
    with (
        Client("http://127.0.0.1:9") as client,
        pytest.raises(TypeError, match="a list of prompts, and this is ") as no,
    ):
        client.encode_batch(given)
    assert str(no.value).endswith(repr(given))


@pytest.mark.parametrize("wrong", [5, None, 1.5, ["a"], [1.5], [None], {"a": 1}, b"abc", [[1]]])
def test_a_wrong_prompt_has_its_place(wrong: Any) -> None:
    """Also among token ids, and before anything is sent."""
    message = f"{wrong!r}; a prompt is a text, or a list of token ids"
    with Client("http://127.0.0.1:9") as client:
        for good in ("a", [1]):
            with pytest.raises(TypeError) as refused:
                client.encode_batch([good, wrong])
            assert str(refused.value) == f"texts[1] is {message}"
        with pytest.raises(TypeError) as refused:
            client.generate_candidates_batch(["a", wrong], 2)
        assert str(refused.value) == f"prompts[1] is {message}"
        with pytest.raises(TypeError, match="a prompt is a text, or a list of token ids"):
            client.encode(wrong)


def test_prompts_from_a_generator() -> None:
    """As a list; token ids are Python's integers, whatever array held them."""
    assert as_prompts("m", "texts", (text for text in "ab")) == ["a", "b"]
    ids: list[Any] = [[1], range(3), np.array([4, 5])]
    assert as_prompts("m", "texts", iter(ids)) == [[1], [0, 1, 2], [4, 5]]
    assert as_prompts("m", "texts", np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert as_prompts("m", "texts", np.array(["a", "b"])) == ["a", "b"]
    with Client("http://127.0.0.1:9", retry=Retry(times=0)) as client, pytest.raises(ConnectionFailed):
        client.encode_batch(text for text in ("a", "b"))


def test_results_are_arrays() -> None:
    """NumPy takes them as they are."""
    vector = np.arange(3, dtype=np.float32)
    assert np.array_equal(np.asarray(Embedding(vector, 1)), vector)
    assert np.asarray(Embeddings(vector[None], 1), np.float64).shape == (1, 3)


def test_matrix() -> None:
    """Filled in any order; nothing before all of it is there."""
    matrix = chunks.Matrix(3)
    matrix.add(slice(2, 3), Embeddings(np.full((1, 2), 7, np.float32), 5))
    with pytest.raises(InvalidResponse, match="1 of 3"):
        matrix.whole()
    with pytest.raises(InvalidResponse, match="one server"):
        matrix.add(slice(0, 2), Embeddings(np.zeros((2, 3), np.float32), 1))
    matrix.add(slice(0, 2), Embeddings(np.full((2, 2), 3, np.float32), 4))
    found = matrix.whole()
    assert found.matrix.tolist() == [[3, 3], [3, 3], [7, 7]]
    assert found.prompt_tokens == 9
    assert chunks.Matrix(0).whole().matrix.shape == (0, 0)


def test_bar() -> None:
    """One line that ends at the end; nothing at all unless it is asked for."""
    stream = io.StringIO()
    bar = Bar("encode", 4, shown=True, stream=stream)
    bar.show(1)
    bar.show(4)
    first, last = stream.getvalue().split("\r")[1:]
    assert first.startswith("encode [#######.......................] 1/4, 0 s, ")
    assert last.startswith(f"encode [{'#' * 30}] 4/4, 0 s")
    assert last.endswith("\n")
    silent = io.StringIO()
    Bar("encode", 4, shown=False, stream=silent).show(4)
    assert not silent.getvalue()
