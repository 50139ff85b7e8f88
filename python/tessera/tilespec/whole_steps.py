"""What graphs timed one by one do not show: the share of long contexts, and the time between the graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tessera.tilespec.costs import Array, CostTable


def completed(graphs: CostTable, bs: int, contexts: Sequence[int], seconds: Array) -> CostTable:
    """A profile of graphs over short contexts, completed by whole steps over long ones.

    The least-squares slope over the cached tokens of the batch is their share, separately for each number of draft
    steps; what is left beside the graphs, in the median of those numbers, is between them. Neither is below 0.

    Args:
        graphs: the profile; what it says of cached tokens and of the host is replaced.
        bs: requests of the steps that were timed, all of one length.
        contexts: their lengths, ascending.
        seconds: ``[contexts, steps]``, of steps that verify all that they draft.
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
