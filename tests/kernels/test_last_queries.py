"""One query for each request in a draft-extend: our backend, with SGLang's kernel of decoding, against softmax."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_testing.attention import arguments, extend_of, extending, slots_of
from tessera_testing.examples import several

HEADS, KV_HEADS, SIZE, SCALING, WIDTH, SPLITS = 4, 2, 16, 0.3, 4, 3
SLOTS, POOL, POSITIONS = 700, 8, 80
some = settings(several, max_examples=4)


@pytest.fixture(scope="module")
def engine(sglang_imports: None) -> Any:
    """SGLang's kernels and backend, and ours."""
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from tessera_patches.tilespec.extend import offsets as tilespec_extend

    return SimpleNamespace(
        attend_once=decode_attention_fwd,
        attend=extend_attention_fwd,
        plain=TritonAttnBackend,
        ours=tilespec_extend,
        mode=ForwardMode.DRAFT_EXTEND_V2,
        layer=RadixAttention(HEADS, SIZE, SCALING, KV_HEADS, layer_id=0),
    )


class Pool:
    """Keys and values ``[SLOTS, KV_HEADS, SIZE]`` of one layer."""

    def __init__(self, rng: torch.Generator, device: str) -> None:
        self.keys, self.values = torch.randn(2, SLOTS, KV_HEADS, SIZE, generator=rng).to(device).unbind()

    def get_key_buffer(self, _: int) -> torch.Tensor:
        """As SGLang's."""
        return self.keys

    def get_value_buffer(self, _: int) -> torch.Tensor:
        """As SGLang's."""
        return self.values

    def set_kv_buffer(self, _: Any, where: Any, k: torch.Tensor, v: torch.Tensor, *scales: None) -> None:
        """As SGLang's."""
        assert scales in ((), (None, None))
        self.keys[where.loc], self.values[where.loc] = k, v


def backend_of(engine: Any, kind: Any, table: torch.Tensor, pool: Pool, slots: int) -> Any:
    """A backend that can attend."""
    backend, device = extending(kind, table, slots, WIDTH), table.device
    backend.token_to_kv_pool = pool
    backend.cuda_graph_attn_logits = torch.full((slots * WIDTH, HEADS, SPLITS, SIZE), torch.nan, device=device)
    backend.cuda_graph_attn_lse = torch.full((slots * WIDTH, HEADS, SPLITS), torch.nan, device=device)
    backend.cuda_graph_num_kv_splits = torch.full((slots * WIDTH,), SPLITS, dtype=torch.int32, device=device)
    backend.max_kv_splits, backend.page_size, backend.dcp_size = SPLITS, 1, 1
    backend.use_mla = backend.enable_deterministic = backend.use_verify_splitkv = backend.use_pdl = False
    backend.swa_v_head_dim = backend.window_kv_indptr = backend.cuda_graph_swa_attn_logits = None
    backend.decode_attention_fwd, backend.extend_attention_fwd = engine.attend_once, engine.attend
    return backend


def fill(backend: Any, engine: Any, kind: Any = None, **batch: Any) -> None:
    """Fill the offsets of a draft-extend's graph, as the backend's own class does or another one."""
    method = engine.plain._update_draft_extend_buffers
    found = arguments(method, forward_mode=engine.mode, **batch).values()
    (kind or type(backend))._update_draft_extend_buffers(backend, *found)


def softmax(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention ``[HEADS, SIZE]`` of one query over ``[n, KV_HEADS, SIZE]``."""
    keys, values = (one.repeat_interleave(HEADS // KV_HEADS, 1) for one in (keys, values))
    weights = torch.softmax(torch.einsum("hd,nhd->hn", q, keys) * SCALING, 1)
    return torch.einsum("hn,nhd->hd", weights, values)


@some
@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2**31))
def test_last_accepted_tokens_see_their_sequence(engine: Any, device: str, bs: int, padding: int, seed: int) -> None:
    """Those of a graph with padding, after one of other lengths; and all keys and values are kept, accepted or not."""
    rng = torch.Generator().manual_seed(seed)
    slots = bs + padding
    table = (1 + torch.randperm(SLOTS - 1, generator=rng)[: POOL * POSITIONS]).view(POOL, POSITIONS).int()
    table[0] = 0
    pool = Pool(rng, device)
    ours = backend_of(engine, engine.ours.LastQueryTriton, table.to(device), pool, slots)
    for _ in range(2):
        contexts = torch.randint(0, POSITIONS - WIDTH, (bs,), generator=rng)
        accepted = torch.randint(1, WIDTH + 1, (bs,), generator=rng)
        requests = 1 + torch.randperm(POOL - 1, generator=rng)[:bs]
        own = torch.stack([table[r, n : n + WIDTH] for r, n in zip(requests, contexts, strict=True)]).long()
        drafts = SimpleNamespace(
            extend_seq_lens_tensor=torch.full((slots,), WIDTH, dtype=torch.int32, device=device),
            num_accept_tokens=torch.cat([accepted, torch.full((padding,), WIDTH)]).int().to(device),
        )
        drafts.select_index = torch.arange(slots, device=device) * WIDTH + drafts.num_accept_tokens - 1
        places = torch.cat([own.flatten(), torch.zeros(padding * WIDTH, dtype=torch.int64)]).to(device)
        batch = extend_of(engine.mode, drafts, places)
        seq_lens = torch.cat([contexts + WIDTH, torch.ones(padding, dtype=torch.int64)]).to(device)
        of_pool = torch.cat([requests, torch.zeros(padding, dtype=torch.int64)]).to(device)
        fill(ours, engine, bs=slots, seq_lens=seq_lens, req_pool_indices=of_pool, spec_info=drafts)
        ours.forward_metadata = ours._build_cuda_graph_forward_metadata(slots, engine.mode, drafts)
        q = torch.randn(slots * WIDTH, HEADS * SIZE, generator=rng).to(device)
        k, v = torch.randn(2, slots * WIDTH, KV_HEADS, SIZE, generator=rng).to(device).unbind()
        output = ours.forward(q, k, v, engine.layer, batch)
        assert output.shape == (slots, HEADS * SIZE)
        assert output.isfinite().all()
        rows = own.flatten().to(device)
        assert pool.keys[rows].equal(k[: bs * WIDTH])
        assert pool.values[rows].equal(v[: bs * WIDTH])
        for b, (request, end) in enumerate(zip(requests.tolist(), (contexts + accepted).tolist(), strict=True)):
            seen = table[request, :end].long().to(device)
            query = q[b * WIDTH + int(accepted[b]) - 1].view(HEADS, SIZE)
            expected = softmax(query, pool.keys[seen], pool.values[seen])
            tolerance = 1e-5 if device == "cpu" else 1e-2  # a GPU multiplies in TF32
            torch.testing.assert_close(output[b].view(HEADS, SIZE), expected, rtol=tolerance, atol=tolerance)


def test_without_a_graph_all_tokens_ask(engine: Any, device: str) -> None:
    """As in SGLang's backend, whose offsets then end before what is read."""
    rng = torch.Generator().manual_seed(3)
    table = torch.arange(1, POSITIONS + 1, dtype=torch.int32).view(1, POSITIONS).to(device)
    q = torch.randn(WIDTH, HEADS * SIZE, generator=rng).to(device)
    k, v = torch.randn(2, WIDTH, KV_HEADS, SIZE, generator=rng).to(device).unbind()
    found = []
    for kind in (engine.plain, engine.ours.LastQueryTriton):
        pool = Pool(torch.Generator().manual_seed(4), device)
        backend = backend_of(engine, kind, table, pool, 1)
        drafts = SimpleNamespace(
            extend_seq_lens_tensor=torch.full((1,), WIDTH, dtype=torch.int32, device=device),
            num_accept_tokens=torch.full((1,), 2, dtype=torch.int32, device=device),
            select_index=torch.ones(1, dtype=torch.int64, device=device),
        )
        lens, requests = torch.tensor([20 + WIDTH], device=device), torch.zeros(1, dtype=torch.int64, device=device)
        plain = engine.plain
        fill(backend, engine, plain, bs=1, seq_lens=lens, req_pool_indices=requests, spec_info=drafts)
        backend.forward_metadata = plain._build_cuda_graph_forward_metadata(backend, 1, engine.mode, drafts)
        batch = extend_of(engine.mode, drafts, table[0, 20:24].long())
        found.append(backend.forward(q, k, v, engine.layer, batch))
    assert found[0].shape == q.shape
    assert found[0].equal(found[1])


def test_what_backends_become(engine: Any) -> None:
    """None, other kinds and the CPU's stay as they are; one query takes one layer, of attention that we know."""
    from sglang.srt.models.llama import LlamaAttention

    def model(*attentions: Any) -> Any:
        return SimpleNamespace(
            model=SimpleNamespace(layers=[SimpleNamespace(self_attn=a.__new__(a)) for a in attentions])
        )

    plain, ours, table = engine.plain, engine.ours, torch.zeros((1, 1), dtype=torch.int32)
    own: Any = type("Own", (LlamaAttention,), {})
    one = model(LlamaAttention)
    fused, once = ours.FusedExtendTriton, ours.LastQueryTriton
    known: list[tuple[Any, str, Any, dict[str, Any], Any]] = [
        (plain, "cuda", one, {}, once),
        (plain, "cuda", model(LlamaAttention, LlamaAttention), {}, fused),
        (plain, "cuda", model(own), {}, fused),
        (plain, "cuda", SimpleNamespace(), {}, fused),
        (plain, "cuda", one, {"sliding_window_size": 64}, plain),
        (plain, "cuda", one, {"dcp_size": 2}, fused),
        (plain, "cuda", one, {"use_mla": True}, fused),
        (plain, "cuda", one, slots_of(table, translated=True), plain),
        (plain, "cpu", one, {}, plain),
    ]
    other: Any = type("Other", (plain,), {})
    usual = {"sliding_window_size": None, "dcp_size": 1, "use_mla": False, **slots_of(table)}
    for kind, device, read_by, facts, after in [*known, (other, "cuda", one, {}, other)]:
        backend = kind.__new__(kind)
        vars(backend).update(usual | facts, device=device)
        ours.fuse_extend(backend, read_by)
        assert type(backend) is after
    ours.fuse_extend(None, one)
