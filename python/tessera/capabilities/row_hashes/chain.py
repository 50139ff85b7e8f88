"""A chain of SHA-256 over the rows of a response, chunk by chunk."""

import hashlib

from tessera.rows.chunks import layout

FIELD = "row_hashes"


def row_hashes(rows: bytes | memoryview, dtype: str, shape: tuple[int, int], prompt_tokens: int) -> list[str]:
    """One digest for each chunk, in hexadecimal digits; each is over its rows and the digest before it.

    Args:
        rows: all rows of a response, one after the other, in the model's dtype, little-endian.
        dtype: its name.
        shape: ``(rows, H)``.
        prompt_tokens: N; `tessera.rows.chunks.layout` says what the chunks are.
    """
    count, hidden_size = shape
    content = memoryview(rows).cast("B")
    width = len(content) // count
    digest = hashlib.sha256(f"tessera rows 1 {dtype} {hidden_size}".encode()).digest()
    found = []
    for start, end in layout(prompt_tokens, count):
        chain = hashlib.sha256(digest)
        chain.update(content[start * width : end * width])
        digest = chain.digest()
        found.append(digest.hex())
    return found
