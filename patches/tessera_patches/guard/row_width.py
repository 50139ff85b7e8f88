"""How wide a request's row of ``req_to_token`` is: the slots that are reserved for drafts go beyond the context."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode


def with_draft_reserve(extra: int, server_args: Any) -> int:
    """AFTER ``get_req_to_token_extra_context_len``: cells beyond the context, as many as one decode step reserves.

    With pages of one token SGLang has fewer. Then slots of a request that is near the end of the context are written
    over those of the next row: another request reads this one's KV and rows, and the CPU's scheduler ends.
    """
    reserved: int = get_alloc_reserve_per_decode(server_args) + server_args.page_size - 1
    return max(extra, reserved)
