"""The cost table of the CPU engine, which has no graphs to measure."""

from collections.abc import Sequence

from tessera.tilespec.costs import CostTable, Curve

_KNEE = 64
"""Tokens up to which the cost of a verification is constant: that of reading the weights."""


def nominal(steps: Sequence[int], requests: int) -> CostTable:
    """Costs in units of a plain forward: a tenth for each draft token, and proportional to tokens beyond `_KNEE`.

    Args:
        steps: the numbers of draft steps to choose from.
        requests: the greatest batch size.
    """
    sizes = sorted({1, 2, 4, 8, 16, 32, 64, 128, 256, 512} | {requests})
    most = requests * (max(steps) + 1)
    tiers = [size for size in range(2, most + 1) if size <= _KNEE or size % 16 == 0]

    def forward(width: int) -> Curve:
        return Curve(sizes, [max(1.0, size * width / _KNEE) for size in sizes])

    def tenth(width: int) -> Curve:
        return Curve(sizes, [second / 10 for second in forward(width).seconds])

    drafts = [count for count in steps if count]
    return CostTable(
        tiers=Curve(tiers, [max(1.0, tier / _KNEE) for tier in tiers]),
        uniform={count + 1: forward(count + 1) for count in steps},
        draft={count: Curve(sizes, [count * second for second in tenth(1).seconds]) for count in drafts},
        extend={count + 1: tenth(count + 1) for count in drafts},
        kv_seconds=dict.fromkeys(steps, 0.0),
        host_seconds=0.05,
        batch_sizes=sizes,
    )
