"""Offsets of draft-extends: kernel and reference against a plain loop, and our backend against SGLang's."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.ops.draft.extend_offsets import ExtendOffsets, extend_offsets
from tessera_kernels.triton.draft.extend_offsets import COLUMNS, PROGRAMS, ROWS, extend_offsets_triton
from tessera_testing.attention import arguments, extending
from tessera_testing.examples import several

POOL, POSITIONS = 160, 300
POISON = -7
some = settings(several, max_examples=30)
batches = st.tuples(st.sampled_from([1, 2, 7, 33, 130]), st.integers(0, 5), st.integers(1, 16), st.integers(0, 2**31))
few = partial(extend_offsets_triton, programs=12)  # a program of the interpreter takes milliseconds


def poisoned(bs: int, capacity: int, device: str) -> ExtendOffsets:
    """Offsets in which nothing is right yet, and one place too many of each."""
    return ExtendOffsets(
        torch.full((bs + 2,), POISON, device=device),
        torch.full((bs + 2,), POISON, dtype=torch.int32, device=device),
        torch.full((capacity,), POISON, device=device),
    )


def of_batch(offsets: ExtendOffsets, bs: int) -> ExtendOffsets:
    """The places that a batch has, as views."""
    return ExtendOffsets(offsets.qo_indptr[: bs + 1], offsets.kv_indptr[: bs + 1], offsets.kv_indices)


def check(
    offsets: ExtendOffsets, lens: list[int], requests: list[int], table: torch.Tensor, width: int, capacity: int
) -> None:
    """Everything as a loop has it, and nothing else was written."""
    bs = len(lens)
    slots = [slot for request, n in zip(requests, lens, strict=True) for slot in table[request, :n].tolist()][:capacity]
    assert offsets.qo_indptr.tolist() == [*range(0, (bs + 1) * width, width), POISON]
    assert offsets.kv_indptr.tolist() == [*(sum(lens[:b]) for b in range(bs + 1)), POISON]
    assert offsets.kv_indices.tolist() == slots + [POISON] * (len(offsets.kv_indices) - len(slots))


@some
@given(batches, st.sampled_from([torch.int32, torch.int64]), st.booleans())
def test_offsets(device: str, batch: tuple[int, int, int, int], extends: torch.dtype, accepted: bool) -> None:
    """Requests in any order, with slots of padding behind them: one token, and more than that to be read.

    With or without those accepted of what is read.
    """
    bs, padding, width, seed = batch
    rng = torch.Generator().manual_seed(seed)
    seq_lens = torch.cat([torch.randint(1, POSITIONS, (bs,), generator=rng), torch.ones(padding, dtype=torch.int64)])
    extend_lens = torch.randint(0, width + 1, (bs + padding,), generator=rng).to(extends)
    extend_lens[bs:] = width
    requests = torch.cat([torch.randperm(POOL, generator=rng)[:bs], torch.zeros(padding, dtype=torch.int64)])
    table = torch.randint(0, 2**31 - 1, (POOL, POSITIONS + seed % 9), generator=rng).int()[:, :POSITIONS]
    accept_lens = torch.minimum(extend_lens, seq_lens) if accepted else torch.zeros_like(extend_lens)
    requested = zip(seq_lens.tolist(), extend_lens.tolist(), accept_lens.tolist(), strict=True)
    lens = [max(n - k, 0) + m for n, k, m in requested]
    also = accept_lens.to(device) if accepted else None
    of_requests = [tensor.to(device) for tensor in (requests, table)]
    wanted = [seq_lens.to(device), extend_lens.to(device), also, *of_requests]
    fill: Any
    for fill in (few, extend_offsets.reference):
        offsets = poisoned(bs + padding, sum(lens) + 5, device)
        fill(*wanted, width, of_batch(offsets, bs + padding))
        check(offsets, lens, requests.tolist(), table, width, sum(lens) + 5)


@pytest.mark.parametrize(
    ("bs", "context", "programs"),
    [(1, 3 * COLUMNS + 1, 2), (1, 3 * COLUMNS + 1, PROGRAMS), (30, COLUMNS + 3, 1), (ROWS + 2, 3, PROGRAMS)],
)
def test_long_contexts_and_large_batches(device: str, bs: int, context: int, programs: int) -> None:
    """Several blocks of one context, contexts with one program each, and more requests than are added up at once."""
    seq_lens = torch.full((bs,), 9)
    seq_lens[-1], seq_lens[bs // 2] = 7 + context, 8 + context
    requests = torch.arange(bs).flip(0) % 5
    table = torch.arange(5 * (context + 9), dtype=torch.int32).view(5, -1)
    lens = [n - 7 for n in seq_lens.tolist()]
    offsets = poisoned(bs, sum(lens) + 5, device)
    sevens = torch.full((bs,), 7, dtype=torch.int32)
    wanted = [seq_lens.to(device), sevens.to(device), None, requests.to(device), table.to(device)]
    fill: Any = partial(extend_offsets_triton, programs=programs)
    fill(*wanted, 8, of_batch(offsets, bs))
    check(offsets, lens, requests.tolist(), table, 8, sum(lens) + 5)


def test_nothing_is_written_beyond_the_capacity(device: str) -> None:
    """Lengths that nobody has room for."""
    table = torch.arange(40, dtype=torch.int32).view(2, 20)
    seq_lens, extend_lens, requests = (torch.tensor(n, device=device) for n in ([20, 20], [1, 1], [1, 0]))
    fill: Any
    for fill in (few, extend_offsets.reference):
        offsets = poisoned(2, 30, device)
        few_slots = of_batch(offsets, 2)._replace(kv_indices=offsets.kv_indices[:25])
        fill(seq_lens, extend_lens, None, requests, table.to(device), 3, few_slots)
        check(offsets, [19, 19], [1, 0], table, 3, 25)


@pytest.fixture(scope="module")
def backends(sglang_imports: None) -> tuple[Any, Any]:
    """SGLang's backend and ours."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    from tessera_patches.tilespec.extend.offsets import FusedExtendTriton

    return TritonAttnBackend, FusedExtendTriton


@pytest.mark.parametrize("read", [True, False])
def test_our_backend_fills_what_sglangs_does(backends: tuple[Any, Any], device: str, read: bool) -> None:
    """Replays of several sizes one after the other, in buffers for more, and a capture, which has nothing to read."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    rng = torch.Generator().manual_seed(2)
    table = torch.randperm(POOL * POSITIONS, generator=rng).int().view(POOL, POSITIONS).to(device)
    theirs, ours = (extending(kind, table, POOL, 4) for kind in backends)
    for bs in (9, 32, 1):
        seq_lens = torch.randint(1, POSITIONS, (40,), generator=rng).to(device)
        drafts = SimpleNamespace(
            extend_seq_lens_tensor=torch.randint(1, 5, (bs,), generator=rng).int().to(device) if read else None
        )
        requests = torch.randperm(POOL, generator=rng)[:40].to(device)
        batch = arguments(
            theirs._update_draft_extend_buffers.__func__,
            bs=bs,
            seq_lens=seq_lens,
            req_pool_indices=requests,
            forward_mode=ForwardMode.DRAFT_EXTEND_V2,
            spec_info=drafts,
        )
        found = []
        for backend in (theirs, ours):
            *offsets, width = backend._update_draft_extend_buffers(*batch.values())
            found.append([*(one.tolist() for one in offsets), width, backend.cuda_graph_kv_indices.tolist()])
            assert backend.qo_indptr.tolist()[: bs + 1] == offsets[0].tolist()
            assert backend.kv_indptr.tolist()[: bs + 1] == offsets[1].tolist()
        assert found[0] == found[1]
