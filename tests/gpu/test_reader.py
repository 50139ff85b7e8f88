"""Reads on a GPU: what comes to the host is what the store held, also if slots are used again."""

from __future__ import annotations

import pytest
import torch

from tessera.rows.reader import RowReader, Selection
from tessera_kernels.ops.rows.pool_rows import Reduce, Span

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SLOTS, HIDDEN = 6000, 4096


def test_slots_are_used_again_at_once() -> None:
    """The next forward overwrites every row right after the read was started: the read has the old ones."""
    rows = torch.zeros(SLOTS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    req_to_token = torch.randperm(SLOTS, device="cuda").int()[None]
    reader = RowReader(rows, req_to_token, 128, timed=True)
    reads = []
    for step in range(20):
        rows.fill_(step)
        torch.cuda.synchronize()  # as the scheduler has waited for the step when it handles its result
        reader.end_step()
        reads.append(reader.start([Span(0, 0, SLOTS, Reduce.MEAN)], [Selection(0, 100, 100 + 50 * step)]))
        rows.fill_(-1)
    for step, read in enumerate(reads):
        fetched = read.take(wait=True)
        assert fetched is not None
        vectors, (raw,), _ = fetched
        assert not vectors.is_cuda
        assert (vectors == step).all()
        assert raw.shape == (50 * step, HIDDEN)
        assert (raw == step).all()
        assert read.seconds() > 0
