"""Long lists in several requests."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tessera.client import Embeddings, InvalidResponse, chunks
from tessera.client.progress import Bar


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_chunks_cover_all(count: int) -> None:
    """In order, none twice, none empty."""
    texts = ["a"] * count
    parts = list(chunks.chunked(texts))
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    assert all(0 < part.stop - part.start <= chunks.CHUNK for part in parts)


def test_long_texts_go_in_smaller_chunks() -> None:
    """And one that is longer than a chunk goes alone."""
    size = chunks.CHUNK_CHARACTERS // 2
    texts = ["a" * size, "b" * size, "c", "d" * 3 * size, "e"]
    assert [(part.start, part.stop) for part in chunks.chunked(texts)] == [(0, 2), (2, 3), (3, 4), (4, 5)]


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
