"""Several spans in one request: what may be asked, and what is read for it."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import admission
from tessera.capabilities.embed.capability import Embed
from tessera.capabilities.embed.options import EmbedOptions, Pooling
from tessera.capability import Progress, Server
from tessera.errors import BadRequest, RequestFailed
from tessera.limits import MAX_SPANS
from tessera.rows.reads import Pool

PROMPT = Progress(prompt_tokens=10, output_tokens=0)
ANSWERED = Progress(prompt_tokens=10, output_tokens=5)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (Pooling.MEAN, [Pool(0, 4), Pool(3, 10)]),
        (Pooling.MAX, [Pool(0, 4, largest=True), Pool(3, 10, largest=True)]),
        (Pooling.FIRST, [Pool(0, 1), Pool(3, 4)]),
        (Pooling.LAST, [Pool(3, 4), Pool(9, 10)]),
    ],
)
def test_each_is_pooled(pooling: Pooling, expected: list[Pool]) -> None:
    """In the order in which they were asked for; they may overlap."""
    assert Embed().reads(EmbedOptions(pooling, spans=((0, 4), (3, 10))), PROMPT) == expected


def test_a_span_may_reach_into_the_output() -> None:
    """N+M-1 rows, and no more."""
    assert Embed().reads(EmbedOptions(spans=((8, 14),)), ANSWERED) == [Pool(8, 14)]
    with pytest.raises(RequestFailed, match="ends at 15, and this request has 14 rows"):
        Embed().reads(EmbedOptions(spans=((0, 2), (8, 15))), ANSWERED)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"spans": []}, "return_embedding.spans"),
        ({"spans": [[0, 1]] * (MAX_SPANS + 1)}, "return_embedding.spans"),
        ({"spans": [[0, 1], [2]]}, "return_embedding.spans[1]"),
        ({"spans": [[0, 1, 2]]}, "return_embedding.spans[0]"),
        ({"spans": [[-1, 1]]}, "return_embedding.spans[0][0]"),
        ({"spans": [[0, 1.5]]}, "return_embedding.spans[0][1]"),
        ({"spans": [[0, True]]}, "return_embedding.spans[0][1]"),
        ({"spans": [[3, 3]]}, "return_embedding.spans[0]"),
        ({"spans": [[0, 2]], "over": "prompt"}, "return_embedding.spans"),
        ({"spans": {"0": 2}}, "return_embedding.spans"),
    ],
)
def test_what_is_refused(wanted: dict[str, Any], field: str) -> None:
    """Too few, too many, not two positions, empty, beside ``over``."""
    with pytest.raises(BadRequest) as refused:
        admission.admit({"return_embedding": wanted}, {}, Server(rows=True))
    assert refused.value.field == field
