"""From the pooled vector to the fields of the answer."""

from __future__ import annotations

import base64

import numpy as np

from tessera.capabilities.embed.capability import answer_fields
from tessera.capabilities.embed.options import EmbedOptions, Encoding, Pooling
from tessera.rows.reads import Pooled

VECTOR = np.array([3.0, 4.0, 12.0], np.float32)


def test_float() -> None:
    """All values, as they are."""
    fields = answer_fields([Pooled(VECTOR, 7)], EmbedOptions())
    assert fields["embedding_tokens"] == 7
    assert list(fields["embedding"]) == [3.0, 4.0, 12.0]


def test_base64_is_little_endian_float32() -> None:
    """What the OpenAI SDK decodes."""
    text = answer_fields([Pooled(VECTOR, 1)], EmbedOptions(encoding_format=Encoding.BASE64))["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == [3.0, 4.0, 12.0]


def test_normalize_comes_after_dimensions() -> None:
    """The vector that leaves has length 1."""
    fields = answer_fields([Pooled(VECTOR, 1)], EmbedOptions(normalize=True, dimensions=2))
    np.testing.assert_allclose(fields["embedding"], [0.6, 0.8], rtol=1e-7)


def test_zero_vector_stays_zero() -> None:
    """No direction, no division."""
    fields = answer_fields([Pooled(np.zeros(2, np.float32), 1)], EmbedOptions(normalize=True))
    assert list(fields["embedding"]) == [0.0, 0.0]


def test_nothing_pooled() -> None:
    """No rows: null and zero."""
    fields = answer_fields([Pooled(None, 0)], EmbedOptions())
    assert (fields["embedding"], fields["embedding_tokens"]) == (None, 0)


def test_the_options_in_force() -> None:
    """Defaults too; the encoding shows itself, and all dimensions are no option."""
    fields = answer_fields([Pooled(VECTOR, 1)], EmbedOptions(pooling=Pooling.LAST, encoding_format=Encoding.BASE64))
    assert fields["embedding_options"] == {"pooling": "last", "over": "prompt", "normalize": False}
    fields = answer_fields([Pooled(VECTOR, 1)], EmbedOptions(normalize=True, dimensions=2))
    assert fields["embedding_options"] == {"pooling": "mean", "over": "prompt", "normalize": True, "dimensions": 2}


def test_spans() -> None:
    """A vector and a number of rows for each; which rows they are is in the request."""
    fields = answer_fields([Pooled(VECTOR, 7), Pooled(2 * VECTOR, 1)], EmbedOptions(spans=((0, 7), (8, 9))))
    assert [list(vector) for vector in fields["embeddings"]] == [[3.0, 4.0, 12.0], [6.0, 8.0, 24.0]]
    assert fields["embedding_tokens"] == [7, 1]
    assert fields["embedding_options"] == {"pooling": "mean", "normalize": False}
    assert "embedding" not in fields
