"""Rows under speculative decoding: taken apart from what SGLang keeps, and moved with their KV."""

from __future__ import annotations

import pytest
import torch

from tessera.rows.drafts import accepted_slots, with_rows, without_rows
from tessera.rows.store import RowStore

HIDDEN = 4


@pytest.mark.parametrize("width", [3 * HIDDEN, HIDDEN, 1])
def test_rows_beside_other_states(width: int) -> None:
    """Whatever SGLang keeps, both come back as they went in."""
    draft_states, rows = torch.randn(5, width), torch.randn(5, HIDDEN)
    found = without_rows(with_rows(draft_states, rows), HIDDEN)
    assert torch.equal(found[0], draft_states)
    assert torch.equal(found[1], rows)


def test_rows_alone() -> None:
    """An EAGLE draft model wants the rows themselves."""
    rows = torch.randn(5, HIDDEN)
    draft_states, found = without_rows(rows, HIDDEN)
    assert draft_states is rows
    assert found is rows


@pytest.mark.parametrize("seed", range(8))
def test_accepted_rows_end_at_the_slots_of_their_positions(seed: int) -> None:
    """Against a plain loop; rows of everything else stay as they are."""
    rng = torch.Generator().manual_seed(seed)
    batch, nodes, depth, slots = 4, 6, 4, 100
    table = (1 + torch.randperm(slots - 1, generator=rng)[:90]).view(6, 15).int()
    requests = torch.randperm(6, generator=rng)[:batch]
    seq_lens = torch.randint(1, 15 - nodes, (batch,), generator=rng)
    out_cache_loc = torch.stack([table[r, n : n + nodes] for r, n in zip(requests, seq_lens, strict=True)]).flatten()
    accept_index = torch.full((batch, depth), -1, dtype=torch.int32)
    for request in range(batch):
        count = int(torch.randint(0, depth, (), generator=rng))
        path = 1 + torch.randperm(nodes - 1, generator=rng)[:count].sort().values
        accept_index[request, : count + 1] = request * nodes + torch.tensor([0, *path])

    store = RowStore(slots, HIDDEN, torch.float32, "cpu")
    store.write(torch.arange(slots), torch.randn(slots, HIDDEN, generator=rng))
    expected = store.rows.clone()
    for request in range(batch):
        for step, node in enumerate(accept_index[request].tolist()):
            if node >= 0:
                target = table[requests[request], seq_lens[request] + step]
                expected[target] = store.rows[out_cache_loc[node]]

    store.move(*accepted_slots(out_cache_loc, accept_index))
    assert torch.equal(store.rows, expected)
