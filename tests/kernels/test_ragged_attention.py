"""Ragged trees on SGLang's Triton attention: its kernel, and the offsets and masks that we give it, against softmax."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.cpu.attention import PagedKV, verify_attention
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_kernels.tree_links import ancestors, parents
from tessera_testing.attention import arguments, slots_of
from tessera_testing.examples import several

HEADS, KV_HEADS, SIZE, SCALING = 2, 1, 16, 0.3
TOPK, STEPS, NODES = 2, 3, 6
SLOTS = 400


@pytest.fixture(scope="module")
def engine(sglang_imports: None) -> Any:
    """SGLang's kernel and our backend."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.layers.attention.verify_mask import VerifyMask
    from sglang.srt.speculative.eagle_utils import TreeMaskMode
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    from tessera_patches.tilespec.attention.triton import RaggedTriton
    from tessera_patches.tilespec.step import Step
    from tessera_patches.tilespec.verify.prune import prune_trees

    return SimpleNamespace(
        attend=extend_attention_fwd,
        plain=TritonAttnBackend,
        backend=RaggedTriton,
        layout=RaggedVerifyLayout,
        mask=lambda buffer: VerifyMask(buffer=buffer, mode=TreeMaskMode.FULL_MASK, max_bs=8),
        step=Step,
        prune=prune_trees,
    )


def grown(rng: torch.Generator, bs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Parents and nodes of whole trees whose every prefix is a tree, not in the order of their candidates."""
    level = torch.tensor([0, 1]).repeat(bs, 1)
    later = torch.stack([2 + torch.randperm(4, generator=rng)[:2] for _ in range(bs)])
    parent_list = torch.cat([torch.full((bs, 1), -1), level, later], 1)
    selected = []
    for b in range(bs):
        chosen: list[int] = []
        while len(chosen) < NODES - 1:
            candidate = int(torch.randint(0, 10, (1,), generator=rng))
            group = candidate // TOPK
            if candidate not in chosen and (group == 0 or int(parent_list[b, group]) in chosen):
                chosen.append(candidate)
        selected.append(chosen)
    return parent_list, torch.tensor(selected)


def backend_of(engine: Any, table: torch.Tensor, slots: int, device: str) -> Any:
    """Our backend with the static buffers of its graphs, and no model runner."""
    backend = engine.backend.__new__(engine.backend)
    backend.topk, backend.device, backend.req_to_token = TOPK, device, table
    vars(backend).update(slots_of(table))
    backend.qo_indptr = torch.full((slots + 1,), 7, device=device)
    backend.mask_indptr = torch.full((slots + 1,), 10**9, device=device)  # what an earlier replay left behind
    backend.kv_indptr = torch.zeros(slots + 1, dtype=torch.int32, device=device)
    backend.cuda_graph_kv_indices = torch.zeros(slots * 64, dtype=torch.int64, device=device)
    backend._verify_mask = engine.mask(torch.ones(4000, dtype=torch.uint8, device=device))
    return backend


@several
@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2**31))
def test_trees_cut_to_size(engine: Any, device: str, bs: int, padding: int, seed: int) -> None:
    """Each node sees its sequence, its ancestors and itself, in a graph that has slots and tokens of padding."""
    rng = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, NODES + 1, (bs,), generator=rng).int()
    seq_lens = torch.randint(1, 40, (bs,), generator=rng)
    total = int(lens.sum())
    rows, slots = total + 3 * padding, bs + padding
    parent_list, selected = grown(rng, bs)

    table = torch.randperm(SLOTS, generator=rng)[: 8 * 46].view(8, 46).int().to(device)
    keys, values = torch.randn(2, SLOTS, KV_HEADS, SIZE, generator=rng).to(device).unbind()
    query = torch.randn(rows, HEADS, SIZE, generator=rng).to(device)
    requests = torch.randperm(8, generator=rng)[:slots].to(device)

    backend = backend_of(engine, table, slots, device)
    plan = VerifyPlan.create(bs, NODES - 1, NODES - 1, device)
    plan.verify_lens.copy_(lens)
    links = torch.full((3, bs, NODES), -1, device=device)
    verify_input = SimpleNamespace(
        retrieve_index=links[0],
        retrieve_next_token=links[1],
        retrieve_next_sibling=links[2],
        positions=torch.zeros(bs * NODES, dtype=torch.int64, device=device),
        custom_mask=None,
        topk=TOPK,
        spec_steps=STEPS,
        ragged_verify_layout=engine.layout.from_verify_lens_device(verify_lens=plan.verify_lens, graph_num_tokens=rows),
    )
    step = engine.step(plan.qo_indptr, plan, candidates=(parent_list.to(device), selected.to(device)))
    step.attach(verify_input)
    step.mask_indptr = engine.prune(step.candidates, verify_input, seq_lens.to(device), plan, backend)
    padded_lens = torch.cat([seq_lens, torch.ones(padding, dtype=torch.int64)]).to(device)
    batch = arguments(
        engine.plain._update_target_verify_buffers,
        bs=slots,
        seq_lens=padded_lens,
        req_pool_indices=requests,
        spec_info=verify_input,
    )
    backend._update_target_verify_buffers(*batch.values())

    own_slots = [table[int(requests[b]), n : n + k].long() for b, (n, k) in enumerate(zip(seq_lens, lens, strict=True))]
    extended = torch.zeros(2, rows, KV_HEADS, SIZE, device=device)
    extended[:, :total] = torch.stack([keys, values])[:, torch.cat(own_slots)]
    output = torch.zeros_like(query)
    offsets = backend.qo_indptr, backend.kv_indptr, backend.cuda_graph_kv_indices
    mask = backend._verify_mask.buffer, True, backend.mask_indptr
    engine.attend(query, *extended.unbind(), output, keys, values, *offsets, *mask, NODES, 1.0, 1.0, SCALING)

    seen, steps = ancestors(parents(parent_list, selected, TOPK), STEPS)
    masks = [seen[b, :n, :n].flatten() for b, n in enumerate(lens.tolist())]
    kv = PagedKV(keys.cpu(), values.cpu(), table.cpu(), requests[:bs].cpu(), seq_lens)
    expected = verify_attention(query[:total].cpu(), kv, lens, torch.cat(masks), SCALING)
    tolerance = 1e-5 if device == "cpu" else 1e-2  # a GPU multiplies in TF32
    torch.testing.assert_close(output[:total].cpu(), expected, rtol=tolerance, atol=tolerance)
    at = verify_input.positions.view(bs, NODES).cpu()
    for b, n in enumerate(lens.tolist()):
        assert at[b, :n].tolist() == (seq_lens[b] + steps[b, :n]).tolist()
