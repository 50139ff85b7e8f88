"""The costs that times of single graphs do not show: those of long contexts, and of the host between graphs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tessera.tilespec.costs import Array, CostTable


def with_whole_steps(graphs: CostTable, bs: int, contexts: Sequence[int], seconds: Array) -> CostTable:
    """Add the costs of cached tokens and of the host to a profile of graphs over short contexts.

    ``kv_seconds`` is the least-squares slope over the cached tokens of the batch, for each number of draft steps;
    ``host_seconds`` is the median of the remainders. Neither is negative.

    Args:
        graphs: the profile of the graphs.
        bs: requests of the timed steps, all of one length.
        contexts: their lengths, ascending.
        seconds: ``[contexts, steps]``, times of steps that verify all draft tokens.
    """
    cached = bs * np.array(contexts, np.float64)
    slopes = np.polyfit(cached, seconds, 1)[0].clip(0) if len(contexts) > 1 else np.zeros(len(graphs.steps))
    alone = replace(graphs, host_seconds=0.0)
    between = seconds - cached[:, None] * slopes - alone.around_verify(bs) - alone.verify_uniform(bs)
    return replace(
        graphs,
        kv_seconds=dict(zip(graphs.steps, slopes.tolist(), strict=True)),
        host_seconds=max(float(np.median(between)), 0.0),
    )
