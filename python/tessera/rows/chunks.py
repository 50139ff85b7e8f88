"""Which rows of a response belong together: the prompt's, then `CHUNK_ROWS` generated ones each."""

CHUNK_ROWS = 32
"""Generated rows of a chunk, as in TOPLOC's paper; the last chunk of a response may have fewer."""


def layout(prompt_tokens: int, rows: int) -> list[tuple[int, int]]:
    """First row and the one after the last of each chunk.

    Args:
        prompt_tokens: N.
        rows: all rows, N+M-1 with M generated tokens.
    """
    starts = range(prompt_tokens, rows, CHUNK_ROWS)
    return [(0, prompt_tokens), *((start, min(start + CHUNK_ROWS, rows)) for start in starts)]


def complete(completion_tokens: int) -> int:
    """How many chunks are complete once so many tokens were generated: the last of them has no row yet."""
    return 1 + max(completion_tokens - 1, 0) // CHUNK_ROWS


def count(generated_rows: int) -> int:
    """How many chunks a response with so many generated rows has."""
    return 1 + -(-generated_rows // CHUNK_ROWS)
