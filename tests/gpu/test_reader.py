"""Reads on a GPU: what comes to the host is what the store held, also if slots are used again."""

from __future__ import annotations

import pytest
import torch

from tessera.rows.kinds import Placed
from tessera.rows.reader import RowReader
from tessera.rows.reads import Pool, Rows
from tessera_testing.reads import grouped, tensors_of

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
        wanted = grouped(Placed(0, Pool(0, SLOTS)), Placed(0, Rows(100, 100 + 50 * step)))
        reads.append(reader.start(wanted))
        rows.fill_(-1)
    for step, read in enumerate(reads):
        fetched = read.result(wait=True)
        assert fetched is not None
        (vectors,), (raw,) = (tensors_of(fetched, read_of) for read_of in (Pool, Rows))
        assert not vectors.is_cuda
        assert (vectors == step).all()
        assert raw.shape == (50 * step, HIDDEN)
        assert (raw == step).all()
        assert read.seconds() > 0
