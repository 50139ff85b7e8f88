"""Which rows of a request are meant: the same words for embeddings and for raw states."""

from enum import StrEnum

UNAVAILABLE = "rows_unavailable"
"""The field of an answer that says why it has none of the values that it needs rows for."""


class Over(StrEnum):
    """Which tokens are meant.

    With N prompt and M generated tokens there are N+M-1 rows: the last generated token was never fed back, so it has
    no row. ``output`` is therefore M-1 rows.
    """

    PROMPT = "prompt"
    OUTPUT = "output"
    ALL = "all"


def bounds(over: Over, prompt_tokens: int, output_tokens: int) -> tuple[int, int]:
    """First position and the one after the last.

    Args:
        over: which tokens.
        prompt_tokens: N.
        output_tokens: M, through the stop; 0 where nothing was generated.
    """
    rows = prompt_tokens + max(output_tokens - 1, 0)
    if over is Over.PROMPT:
        return 0, prompt_tokens
    return (prompt_tokens, rows) if over is Over.OUTPUT else (0, rows)
