"""Which rows each fingerprint of a response proves."""

import hashlib

CHUNK_ROWS = 32
"""Generated rows that one fingerprint proves, as in the paper; the last one of a response may prove fewer."""
ALL_ROWS = 0xFFFF_FFFF


def layout(prompt_tokens: int, rows: int) -> list[tuple[int, int]]:
    """First row and the one after the last of each fingerprint: the prompt, then `CHUNK_ROWS` generated rows each.

    Args:
        prompt_tokens: N.
        rows: all rows, N+M-1 with M generated tokens.
    """
    starts = range(prompt_tokens, rows, CHUNK_ROWS)
    return [(0, prompt_tokens), *((start, min(start + CHUNK_ROWS, rows)) for start in starts)]


def complete(completion_tokens: int) -> int:
    """How many fingerprints are complete once so many tokens were generated: the last of them has no row yet."""
    return 1 + max(completion_tokens - 1, 0) // CHUNK_ROWS


def count(generated_rows: int) -> int:
    """How many fingerprints a response with so many generated rows has."""
    return 1 + -(-generated_rows // CHUNK_ROWS)


def row_mask(nonce: str | None, index: int, rows: int) -> int:
    """The rows that a verifier's nonce selects in one chunk: bit i says it for rows i, i+32, ….

    A hash of nonce and chunk picks about every second row; all are proven where it would pick none.

    Args:
        nonce: the verifier's, or None: all rows.
        index: of the fingerprint in its response.
        rows: in this chunk.
    """
    if nonce is None:
        return ALL_ROWS
    mask = int.from_bytes(hashlib.sha256(f"{index}:{nonce}".encode()).digest()[:4], "big")
    return mask if mask & ((1 << min(rows, CHUNK_ROWS)) - 1) else ALL_ROWS


def value_count(mask: int, rows: int, hidden_size: int, topk: int) -> int:
    """How many values the fingerprint of a chunk holds: topk, or all where the chosen rows have fewer."""
    turns, rest = divmod(rows, CHUNK_ROWS)
    chosen = turns * (mask & ALL_ROWS).bit_count() + (mask & ((1 << rest) - 1)).bit_count()
    return min(topk, chosen * hidden_size)
