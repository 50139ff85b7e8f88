"""The numbers of draft tokens that TileSpec chooses from."""

from __future__ import annotations


def candidates(most: int) -> list[int]:
    """The numbers of drafted tokens to choose from, up to ``--speculative-num-steps``: each costs graphs and memory."""
    return sorted({steps for steps in (0, 1, 2, 3, 5, 7, 11, 15) if steps < most} | {most})
