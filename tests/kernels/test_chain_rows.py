"""Tokens and positions of whole chains: Triton and the torch reference against plain lists."""

from __future__ import annotations

import pytest
import torch

from tessera_kernels.ops.draft.chain_rows import chain_rows
from tessera_kernels.triton.draft.chain_rows import chain_rows_triton

POISON = -5


@pytest.mark.parametrize("bs", [1, 3, 64])
@pytest.mark.parametrize("steps", [1, 7, 15])
@pytest.mark.parametrize("apart", [0, 3])
def test_chains(device: str, bs: int, steps: int, apart: int) -> None:
    """Of drafts that lie in a wider tensor, too; nothing is written beyond."""
    rng = torch.Generator().manual_seed(steps)
    anchors, seq_lens = torch.randint(0, 2**40, (2, bs), generator=rng)
    drafts = torch.randint(0, 1000, (bs, steps + apart), generator=rng)[:, :steps]
    chains = [[anchor, *draft] for anchor, draft in zip(anchors.tolist(), drafts.tolist(), strict=True)]
    places = [[length + depth for depth in range(steps + 1)] for length in seq_lens.tolist()]
    for run in (chain_rows_triton, chain_rows.reference):
        written = torch.full((2, bs * (steps + 1) + 4), POISON, device=device)
        tokens, positions = written[:, :-4]
        run(anchors.to(device), drafts.to(device), seq_lens.to(device), tokens, positions)
        assert tokens.view(bs, -1).tolist() == chains
        assert positions.view(bs, -1).tolist() == places
        assert (written[:, -4:] == POISON).all()
