"""The numbers of draft tokens that TileSpec chooses from."""

from typing import NamedTuple


def candidates(most: int) -> list[int]:
    """The numbers of drafted tokens to choose from, up to ``--speculative-num-steps``: each costs graphs and memory."""
    return sorted({steps for steps in (0, 1, 2, 3, 5, 7, 11, 15) if steps < most} | {most})


class DraftShape(NamedTuple):
    """The most that is drafted for a request, as SGLang's options say it."""

    forwards: int
    """``--speculative-num-steps``."""
    topk: int
    """``--speculative-eagle-topk``: 1 drafts chains, more drafts trees."""
    nodes: int
    """``--speculative-num-draft-tokens``: with the request's own token, the root."""

    @property
    def trees(self) -> bool:
        """Whether several drafted tokens may follow one, so that a request's drafts branch; else they are one chain."""
        return self.topk > 1

    @property
    def drafted(self) -> list[int]:
        """The numbers of drafted tokens of a request to choose from; a tree is drafted as a whole or not at all."""
        return [0, self.nodes - 1] if self.trees else candidates(self.forwards)

    def state(self, drafted: int) -> tuple[int, int]:
        """SGLang's number of steps, and of tokens with the request's own, for one of `drafted`."""
        forwards = self.forwards if self.trees and drafted else drafted
        return forwards, drafted + 1
