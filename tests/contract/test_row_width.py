"""A request's row of slots holds what SGLang reserves for drafts, also at the end of the context."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len

from tessera_patches.guard.row_width import with_draft_reserve


def arguments(steps: int, topk: int, tokens: int, algorithm: str | None = "EAGLE") -> SimpleNamespace:
    """Those of a server that drafts, with pages of one token."""
    return SimpleNamespace(
        speculative_algorithm=algorithm,
        speculative_num_steps=steps,
        speculative_eagle_topk=topk,
        max_speculative_num_draft_tokens=tokens,
        page_size=1,
    )


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "twice"), [(5, 8, 64, 128), (3, 4, 8, 24), (5, 1, 6, 12), (3, 1, 4, 8)]
)
def test_what_is_reserved_fits(steps: int, topk: int, tokens: int, twice: int) -> None:
    """Twice the drafts of a step, or twice the tokens that are verified, where these are more."""
    server_args = arguments(steps, topk, tokens)
    own = get_req_to_token_extra_context_len(server_args)
    assert with_draft_reserve(own, server_args) == max(own, twice)


def test_sglang_has_fewer() -> None:
    """Where it has as many, our hook can go."""
    assert get_req_to_token_extra_context_len(arguments(5, 8, 64)) < 128


def test_without_drafts_nothing_changes() -> None:
    """Four cells are SGLang's own."""
    server_args = arguments(0, 0, 0, None)
    assert with_draft_reserve(get_req_to_token_extra_context_len(server_args), server_args) == 4
