"""The keys under which readers of rows find prefixes, as weights change."""

from __future__ import annotations

import pytest

from tessera.errors import BadRequest
from tessera.request_fields import PER_PROMPT
from tessera.rows.generations import Generations


def test_keys() -> None:
    """One's own until weights change; others after each change; one's own again after a flush."""
    generations = Generations()
    assert [generations.key(own) for own in (None, "a")] == [None, "a"]
    seen: set[object] = {None, "a"}
    for number in (1, 2):
        generations.note_update()
        assert generations.number == number
        keys = {generations.key(own) for own in (None, "a")}
        assert len(keys) == 2
        assert not keys & seen
        for key in keys:
            assert key is not None
            with pytest.raises(BadRequest, match="extra_key"):
                PER_PROMPT["extra_key"]("extra_key", key)
        seen |= keys
    generations.note_flush()
    assert [generations.key(own) for own in (None, "a")] == [None, "a"]
    assert generations.number == 2
