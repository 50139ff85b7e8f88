"""Offsets of verifications: kernel and reference against SGLang's functions, and in SGLang's FlashAttention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tessera_kernels.ops.verify.verify_offsets import VerifyOffsets, verify_offsets
from tessera_kernels.triton.verify.verify_offsets import verify_offsets_triton
from tessera_testing.attention import arguments, slots_of

WIDTH = 8
SIZES = [1, 2, 13, 64, 130, 300]


@pytest.fixture(scope="module")
def engine(sglang_imports: None, device: str) -> Any:
    """SGLang's functions and our backend."""
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout, build_ragged_target_verify_geometry

    from tessera_patches.tilespec.attention.flash import fuse_verify

    def layout(lens: list[int]) -> Any:
        """SGLang's layout of these lengths, which fill their graph."""
        grid = [sum(lens)]
        return RaggedVerifyLayout.from_verify_lens(verify_lens_cpu=lens, device=torch.device(device), grid=grid)

    return SimpleNamespace(
        backend=FlashAttentionBackend,
        fuse=fuse_verify,
        layout=layout,
        geometry=build_ragged_target_verify_geometry,
        mode=ForwardMode.TARGET_VERIFY,
    )


def batch_of(bs: int, device: str) -> tuple[torch.Tensor, list[int]]:
    """Contexts, of which padding has one token, and how many tokens are verified of each request."""
    rng = torch.Generator().manual_seed(bs)
    contexts = torch.randint(1, 5000, (bs,), generator=rng)
    contexts[bs // 2 :: 3] = 1
    return contexts.to(device), torch.randint(0, WIDTH + 1, (bs,), generator=rng).clamp(min=1).tolist()


@pytest.mark.parametrize("bs", SIZES)
@pytest.mark.parametrize("ragged", [True, False])
def test_offsets(engine: Any, device: str, bs: int, ragged: bool) -> None:
    """What SGLang has, and nothing beyond."""
    contexts, lens = batch_of(bs, device)
    if not ragged:
        lens = [WIDTH] * bs
    expected = engine.geometry(seq_lens=contexts, layout=engine.layout(lens))
    for run in (verify_offsets_triton, verify_offsets.reference):
        kept = [torch.full((bs + 3,), -7, dtype=torch.int32, device=device) for _ in range(3)]
        offsets = VerifyOffsets(kept[0][:bs], kept[1][: bs + 1], kept[2][: bs + 1])
        verify_lens = torch.tensor(lens, dtype=torch.int32, device=device) if ragged else None
        run(contexts, verify_lens, WIDTH, offsets)
        assert torch.equal(offsets.kv_lens, expected.cache_seqlens_int32)
        assert torch.equal(offsets.kv_indptr, expected.cu_seqlens_k)
        if ragged:
            assert torch.equal(offsets.qo_indptr, expected.cu_seqlens_q)
        else:
            assert (kept[1] == -7).all()
        assert all((one[bs + 1 :] == -7).all() for one in kept)


def backend_of(engine: Any, bs: int, table: torch.Tensor) -> Any:
    """SGLang's backend with what a verification of chains reads, and the buffers of one captured graph."""
    backend: Any = engine.backend.__new__(engine.backend)
    ints: dict[str, Any] = {"dtype": torch.int32, "device": table.device}
    metadata = SimpleNamespace(
        cache_seqlens_int32=torch.zeros(bs, **ints),
        cu_seqlens_q=torch.arange(0, (bs + 1) * WIDTH, WIDTH, **ints),
        cu_seqlens_k=torch.zeros(bs + 1, **ints),
        page_table=torch.zeros((bs, table.shape[1]), **ints),
        swa_page_table=None,
    )
    known = {"topk": 1, "use_sliding_window_kv_pool": False, "page_size": 1, "speculative_num_draft_tokens": WIDTH}
    for name, value in known.items():
        setattr(backend, name, value)
    backend.req_to_token, backend.target_verify_metadata = table, {bs: metadata}
    backend.max_num_pages = table.shape[1]
    vars(backend).update(slots_of(table))
    return backend


@pytest.mark.parametrize("ragged", [True, False])
def test_flash_attention_has_the_same_metadata(engine: Any, device: str, ragged: bool) -> None:
    """As SGLang's backend fills them, buffer by buffer."""
    bs = 5
    contexts, lens = torch.tensor([7, 1, 40, 1, 23], device=device), [8, 1, 3, 2, 2]
    table = torch.arange(6 * 64, dtype=torch.int32, device=device).view(6, 64)
    requests = torch.tensor([4, 2, 5, 0, 1], device=device)
    spec_info = SimpleNamespace(ragged_verify_layout=engine.layout(lens) if ragged else None)
    batch = arguments(
        engine.backend._apply_cuda_graph_metadata,
        bs=bs,
        req_pool_indices=requests,
        seq_lens=contexts,
        forward_mode=engine.mode,
        spec_info=spec_info,
    )
    found = []
    for fused in (False, True):
        backend = backend_of(engine, bs, table)
        if fused:
            engine.fuse(backend)
            assert type(backend) is not engine.backend
        backend._apply_cuda_graph_metadata(**batch)
        assert backend.forward_metadata is backend.target_verify_metadata[bs]
        found.append(vars(backend.forward_metadata))
    assert all(torch.equal(one, found[1][name]) for name, one in found[0].items() if one is not None)
    assert int(found[1]["cu_seqlens_k"][-1]) == int(contexts.sum()) + (sum(lens) if ragged else bs * WIDTH)


def test_other_backends_are_left_as_they_are(engine: Any) -> None:
    """Branches, and models with a window, have other metadata."""
    for name, value in (("topk", 4), ("use_sliding_window_kv_pool", True)):
        backend = backend_of(engine, 1, torch.zeros((1, 1), dtype=torch.int32))
        setattr(backend, name, value)
        engine.fuse(backend)
        assert type(backend) is engine.backend
