"""The sizes, in tokens, at which ragged verification is captured."""

_SPACING = ((64, 8), (256, 16), (512, 32))
"""Up to so many tokens, one graph for every so many: tiles are 64 tokens wide, and small batches need finer sizes."""
_BEYOND = 64


def tiers(most: int) -> list[int]:
    """Ascending sizes up to ``most`` tokens, which is one of them."""
    found, size = [], 0
    while size < most:
        size += next((step for bound, step in _SPACING if size < bound), _BEYOND)
        found.append(min(size, most))
    return found
