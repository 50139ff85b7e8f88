"""A request's row of slots holds what SGLang reserves for drafts, also at the end of the context."""

from __future__ import annotations

import inspect

import pytest
from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len
from sglang.srt.runtime_context import get_context

from tessera_patches.guard.row_width import with_draft_reserve


def extra_cells(steps: int, topk: int, tokens: int, algorithm: str | None = "EAGLE") -> tuple[int, int]:
    """Of a server that drafts, with pages of one token: what SGLang adds to each row, and that with our hook."""
    options = {
        "speculative_algorithm": algorithm,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": tokens,
        "page_size": 1,
    }
    with get_context().override_server_args(**options) as server_args:
        # From 0.5.20 on it has no parameter, and reads what the process has published.
        given = (server_args,) if inspect.signature(get_req_to_token_extra_context_len).parameters else ()
        own: int = get_req_to_token_extra_context_len(*given)
        return own, with_draft_reserve(own, *given)


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "twice"), [(5, 8, 64, 128), (3, 4, 8, 24), (5, 1, 6, 12), (3, 1, 4, 8)]
)
def test_what_is_reserved_fits(steps: int, topk: int, tokens: int, twice: int) -> None:
    """Twice the drafts of a step, or twice the tokens that are verified, where these are more."""
    own, ours = extra_cells(steps, topk, tokens)
    assert ours == max(own, twice)


def test_sglang_has_fewer() -> None:
    """Where it has as many, our hook can go."""
    assert extra_cells(5, 8, 64)[0] < 128


def test_without_drafts_nothing_changes() -> None:
    """Four cells are SGLang's own."""
    assert extra_cells(0, 0, 0, None) == (4, 4)
