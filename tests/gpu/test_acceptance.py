"""Chains are accepted as SGLang's own operators accept them: the same coins give the same tokens."""

from __future__ import annotations

import pytest
import torch

from tessera.testing.verified import HOWS, How, VerifiedChains
from tessera_kernels.truncate import truncate, truncate_torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: SGLang's operators have no other form"),
]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("bs", "width"), [(1, 2), (3, 4), (64, 8), (128, 4)])
def test_as_sglang_does(bs: int, width: int, how: How) -> None:
    """Lengths are equal, and tokens; of sampled last ones one in a hundred may differ, by the rounding of sums."""
    verified = VerifiedChains(bs, width)
    ours, sglangs = verified.ours(how), verified.sglangs(how)
    assert ours.lens.tolist() == sglangs.lens.tolist()
    assert ours.places.tolist() == sglangs.places.tolist()
    assert len(ours.lens.unique()) > 1 or bs < 10  # some were right, some were not
    kept = ours.places.flatten() >= 0
    differ = int((ours.tokens[kept] != sglangs.tokens[kept]).sum())
    assert differ <= (0 if how == "greedy" else bs / 100)


def test_the_twin_truncates_as_sglang_does() -> None:
    """What is kept is the same, up to one token in each row at the border of a share, and so are its probabilities."""
    rng = torch.Generator("cuda").manual_seed(1)
    p = (2 * torch.randn(64, 32_000, device="cuda", generator=rng)).softmax(1)
    top_ks = torch.randint(1, 5000, (64,), dtype=torch.int32, device="cuda", generator=rng)
    top_ps = torch.rand(64, device="cuda", generator=rng).clamp(min=1e-3)
    for limits in ((top_ks, None), (None, top_ps), (top_ks, top_ps)):
        ours, sglangs = truncate_torch(p, *limits), truncate(p, *limits)
        assert int(((ours > 0) != (sglangs > 0)).sum(1).max()) <= 1
        torch.testing.assert_close(ours, sglangs, rtol=1e-2, atol=1e-6)
