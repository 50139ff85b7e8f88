"""Which rows of a chunk a fingerprint proves, and how many of their values."""

import hashlib

from tessera.rows.chunks import CHUNK_ROWS
from tessera.rows.reads import ALL_ROWS


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
