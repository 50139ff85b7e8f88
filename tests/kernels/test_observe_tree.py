"""Updates of the acceptance model by verified trees: Triton and the torch reference against a plain loop."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.ops.learning.histogram import PREDICTION_UNIT
from tessera_kernels.ops.learning.observe_acceptance import OFFSET_DECAY, OFFSET_LIMIT, OFFSET_RATE
from tessera_kernels.ops.learning.observe_tree import observe_tree
from tessera_kernels.triton.learning.observe_tree import observe_tree_triton
from tessera_testing.examples import several
from tessera_testing.path_scores import EDGES, REQUESTS, acceptance, model_of, scores_of

batches = st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 7, 15]), st.integers(0, 2**31))


@several
@given(batches)
def test_observation(device: str, batch: tuple[int, int, int]) -> None:
    """Each verified node is a trial, each on the accepted path a success; counts and offsets as in a plain loop."""
    bs, nodes, seed = batch
    rng = torch.Generator().manual_seed(seed)
    undrafted = min(seed % 3, bs)
    scores = scores_of(rng, bs, nodes, undrafted)
    requests = torch.randperm(REQUESTS, generator=rng)[:bs]
    verify_lens = torch.randint(1, nodes + 2, (bs + 2,), generator=rng).int()
    accept_index = torch.full((bs, 4), -1, dtype=torch.int32)
    paths = []
    for b in range(bs):
        accepted = (torch.rand(int(verify_lens[b]) - 1, generator=rng) < 0.4).nonzero().flatten()[:3] + 1
        paths.append(accepted.tolist())
        accept_index[b, : 1 + len(accepted)] = b * (nodes + 1) + torch.tensor([0, *accepted.tolist()])
    observe: Any
    for observe in (observe_tree_triton, observe_tree.reference):
        model = model_of(torch.Generator().manual_seed(seed), device)
        model.counts.fill_(-2)
        counts, after = torch.full((3, 1, 8), -2, dtype=torch.int32), model.offsets.cpu().clone()
        for b, request in enumerate(requests.tolist()):
            gradient = 0.0
            for node in range(1, int(verify_lens[b]) if b >= undrafted else 1):
                score = float(scores[b, node - 1])
                place, succeeded = sum(edge <= score for edge in EDGES), node in paths[b]
                counts[0, 0, place] += 1
                counts[1, 0, place] += succeeded
                expected = acceptance(model, score, request)
                counts[2, 0, place] += int(expected / PREDICTION_UNIT + 0.5)
                gradient += succeeded - expected
            moved = OFFSET_DECAY * float(after[request]) + OFFSET_RATE * gradient
            after[request] = min(max(moved, -OFFSET_LIMIT), OFFSET_LIMIT)
        observe(*(t.to(device) for t in (scores, requests, verify_lens, accept_index)), model)
        assert torch.equal(model.counts.cpu()[:2], counts[:2])
        assert (model.counts.cpu() - counts).abs().max() <= bs * nodes  # each rounded once
        torch.testing.assert_close(model.offsets.cpu(), after, rtol=1e-5, atol=1e-6)
