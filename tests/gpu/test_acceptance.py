"""Chains are accepted as SGLang's own operators accept them: the same coins give the same tokens."""

from __future__ import annotations

import pytest
import torch

from tessera_testing.verified import HOWS, How, VerifiedChains

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: SGLang's operators have no other form"),
]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("bs", "width"), [(1, 2), (3, 4), (64, 8), (128, 4)])
def test_as_sglang_does(bs: int, width: int, how: How) -> None:
    """Lengths are equal, and tokens; of sampled last ones some may be neighbours, by the rounding of sums."""
    # Those of `sgl_kernel` are compiled by nvcc when they are first called.
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton, top_p_renorm_probs_triton

    verified = VerifiedChains(bs, width, (top_k_renorm_probs_triton, top_p_renorm_probs_triton))
    ours, sglangs = verified.ours(how), verified.sglangs(how)
    assert ours.accept_lens.tolist() == sglangs.accept_lens.tolist()
    assert ours.accept_index.tolist() == sglangs.accept_index.tolist()
    assert len(ours.accept_lens.unique()) > 1 or bs < 10  # some were right, some were not
    accepted = ours.accept_index.flatten() >= 0
    differ = int((ours.tokens[accepted] != sglangs.tokens[accepted]).sum())
    assert differ <= (0 if how == "greedy" else 1 + bs / 20)
