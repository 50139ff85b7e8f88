"""How a draft is cut off for SGLang's rejection sampler, which knows no verify length: a draft row of NaN.

The installed kernel is read from its file, so that SGLang is not imported.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

VOCABULARY = 37


def installed() -> Any:
    """SGLang's module with the kernel."""
    package = importlib.util.find_spec("sglang")
    if package is None or not package.submodule_search_locations:
        pytest.fail("SGLang is not installed")
    file = f"{package.submodule_search_locations[0]}/kernels/ops/speculative/reject_sampling.py"
    spec = importlib.util.spec_from_file_location("installed_reject_sampling", file)
    if spec is None or spec.loader is None:
        pytest.fail(f"{file} cannot be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("beyond", [0.0, float("nan")])
def test_a_draft_row_that_is_not_a_number_ends_the_draft(device: str, beyond: float) -> None:
    """With ``draft_probs[b, verify_len - 1] = nan`` at most ``verify_len - 1`` drafts are accepted.

    Whatever the target's rows behind them hold. Where all of them are, the last token is a sample of the target itself.
    """
    rng = torch.Generator().manual_seed(5)
    bs, slots = 40, 5
    lens = torch.randint(1, slots, (bs,), generator=rng)  # all are cut: at least one draft is left
    target = torch.rand(bs, slots, VOCABULARY, generator=rng).pow(4)
    target /= target.sum(2, keepdim=True)
    drafts = torch.randint(0, VOCABULARY, (bs, slots), generator=rng)
    draft = torch.full((bs, slots - 1, VOCABULARY), 1e-3)  # nearly everything is accepted
    for b, n in enumerate(lens.tolist()):
        draft[b, n - 1] = float("nan")
        target[b, n:] = beyond
    coins, last_coins = torch.rand(bs, slots, generator=rng), torch.rand(bs, generator=rng)
    index = torch.arange(bs * slots).view(bs, slots)
    predicts = torch.full((bs * slots,), -1, dtype=torch.int32)
    accept_index = torch.full((bs, slots), -1, dtype=torch.int32)
    accepted = torch.empty(bs, dtype=torch.int32)
    outputs = [t.to(device) for t in (predicts, accept_index, accepted)]
    inputs = [t.to(device) for t in (drafts, index, index, index, coins, last_coins, target, draft)]
    installed().chain_speculative_sampling_triton(*outputs, *inputs, 1.0, 1.0, True)

    predicts, accept_index, accepted = (t.cpu() for t in outputs)
    for b, n in enumerate(lens.tolist()):
        count = 0
        while count < n - 1:
            token = int(drafts[b, count + 1])
            if not coins[b, count] * draft[b, count, token] < target[b, count, token]:
                break
            count += 1
        assert int(accepted[b]) == count <= n - 1
        if count == n - 1:  # reached the cut
            cdf = target[b, count].cumsum(0)
            expected = int((cdf <= last_coins[b] * cdf[-1]).sum())
            assert int(predicts[b * slots + count]) == expected
    assert (accepted == lens - 1).sum() > bs // 2
