"""The width of the rows of ``req_to_token``, with room for the slots that are reserved for drafts."""

from typing import Any

from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode


def with_draft_reserve(extra: int, *server_args: Any) -> int:
    """AFTER ``get_req_to_token_extra_context_len``: at least as many extra cells as a decode step reserves.

    With pages of one token SGLang has fewer. Then a request near the end of its context overwrites the next row: that
    request reads the wrong KV slots and rows, and on a CPU the scheduler ends.
    """
    reserved: int = get_alloc_reserve_per_decode(*server_args)
    return max(extra, reserved)
