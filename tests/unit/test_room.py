"""How long a claim may be, against the arithmetic of SGLang's scheduler."""

from __future__ import annotations

import pytest

from tessera.capabilities.fingerprints.room import VerifyRoom


def responses(context: int, pool: int, page: int) -> list[tuple[int, int]]:
    """Prompt and most tokens of each that SGLang answers, by ``get_worker_info`` and ``init_req_max_new_tokens``."""
    longest = min(context - 1, pool - 1)
    found = []
    for prompt in range(1, min(longest - 5, pool - page)):
        pages = -(-prompt // page) * page
        found.append((prompt, max(0, min(longest - prompt - 1, pool - pages - page - 1))))
    return found


@pytest.mark.parametrize(("context", "pool", "page"), [(64, 8192, 1), (64, 8192, 16), (4096, 100, 1), (4096, 128, 16)])
def test_every_response_can_be_verified(context: int, pool: int, page: int) -> None:
    """By a prefill and by being generated again; one token more than the longest cannot."""
    room = VerifyRoom.of({"max_req_input_len": min(context - 1, pool - 1) - 5, "max_total_num_tokens": pool}, page)
    found = responses(context, pool, page)
    for prompt, output in found:
        assert room.regeneration_refusal(prompt, output) == ""
        if output:
            assert room.refusal(prompt + output - 1) == ""
            assert room.regeneration_refusal(prompt, output + 1) != ""
    assert room.rows + page < pool  # SGLang would let a longer prefill wait for ever
    assert room.rows >= max(prompt + output for prompt, output in found if output) - 1
    assert str(room.rows) in room.refusal(room.rows + 1)
    assert str(room.rows + 1) in room.refusal(room.rows + 1)
