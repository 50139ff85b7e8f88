"""Cached launches of other people's kernels: the results of Triton's own launches, for all kinds of arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton import language as tl

from tessera_kernels.triton.device.launch_cache import cache_launches


@triton.jit  # type: ignore[untyped-decorator]
def _scale(out, values, count, factor, width: tl.constexpr, plus=0, MINUS: tl.constexpr = False):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    at = tl.program_id(0) * width + tl.arange(0, width)
    scaled = tl.load(values + at, mask=at < count, other=0) * factor + plus
    tl.store(out + at, -scaled if MINUS else scaled, mask=at < count)


@pytest.mark.parametrize("again", [False, True])
def test_launches_are_as_tritons(device: str, again: bool) -> None:
    """Numbers that are specialized and such that are not, pointers of all kinds, by place and by name."""
    cache_launches(_scale)
    values = torch.arange(1000, device=device)
    cases: list[tuple[int, int, int, dict[str, Any]]] = [
        *((first, count, factor, {}) for first in (0, 1, 4) for count in (1, 16, 100, 160) for factor in (1, 2, 3, 16)),
        (1, 100, 2**33, {}),
        (0, 100, 3, {"MINUS": True}),
        (0, 100, 3, {"num_warps": 2}),
        *((0, 100, 3, {"plus": plus, "MINUS": True}) for plus in (0, 1, 5, 16)),
    ]
    for first, count, factor, named in cases * (1 + again):
        out = torch.full((1000,), -7, device=device)
        _scale[(8,)](
            out[first:], values[first:].to(torch.int32 if count == 16 else torch.int64), count, factor, 32, **named
        )
        expected = torch.full((1000,), -7, device=device)
        scaled = values[first : first + count] * factor + named.get("plus", 0)
        expected[first : first + count] = -scaled if named.get("MINUS") else scaled
        assert torch.equal(out, expected), (first, count, factor, named)
