"""Attention of speculative decoding for SGLang's ``torch_native`` backend, on the CPU engine. Scheduler process."""

from typing import Any

import torch
from sglang.srt.layers.attention import torch_native_backend

from tessera.cpu import refused_model
from tessera_kernels.cpu.attention import PagedKV, Step, draft_attention, verify_attention
from tessera_patches.core import calls
from tessera_patches.core.apply import start_error
from tessera_patches.engine.batches import new_slots, rows_of, seq_lens, speculative_input
from tessera_patches.engine.cache import kv_pool, layer_kv, slot_map, write_kv
from tessera_patches.engine.model import sliding_window


class TorchNativeAttnBackend(torch_native_backend.TorchNativeAttnBackend):
    """REPLACEs ``TorchNativeAttnBackend``: also verifies chains and trees, of equal and different lengths."""

    def __init__(self, runner: Any) -> None:
        refusal = refused_model(sliding_window(runner))
        if refusal is not None:
            raise start_error(refusal)
        super().__init__(runner)
        calls.count(TorchNativeAttnBackend)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """Returns ``[tokens, Hq * D]``."""
        if not forward_batch.forward_mode.is_target_verify():
            stock: torch.Tensor = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
            return stock
        drafts = speculative_input(forward_batch)
        layout = drafts.ragged_verify_layout
        lens = (
            torch.full_like(seq_lens(forward_batch), drafts.draft_token_num) if layout is None else layout.verify_lens
        )
        mask = drafts.custom_mask if drafts.tree_topk != 1 else None
        kv = self._cached(k, v, layer, forward_batch, save_kv_cache)
        return verify_attention(_heads(q, layer), kv, lens, mask, layer.scaling).flatten(1)

    def _cached(self, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool) -> PagedKV:
        pool = kv_pool(self)
        if save_kv_cache:
            write_kv(pool, layer, new_slots(forward_batch), k, v)
        return PagedKV(*layer_kv(pool, layer), slot_map(self), rows_of(forward_batch), seq_lens(forward_batch))


class DraftStep(TorchNativeAttnBackend):
    """Attention of a draft step, with a new token for each branch."""

    def __init__(self, runner: Any, step: Step) -> None:
        super().__init__(runner)
        self._step = step

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """Returns ``[branches, Hq * D]``."""
        kv = self._cached(k, v, layer, forward_batch, save_kv_cache)
        return draft_attention(_heads(q, layer), kv, self._step, layer.scaling).flatten(1)


class DraftSteps:
    """A backend for each draft step, as SGLang's draft worker expects them."""

    needs_cpu_seq_lens = True

    def __init__(self, runner: Any, topk: int, num_steps: int) -> None:
        self.attn_backends = [DraftStep(runner, Step(topk, num_steps, step)) for step in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Nothing: each layer reads the batch itself."""


def draft_decode_backend(factory: Any) -> DraftSteps | None:
    """REPLACEs ``DraftBackendFactory.create_decode_backend``. A single draft step needs no forward."""
    steps = factory.speculative_num_steps
    return DraftSteps(factory.draft_model_runner, factory.topk, steps) if steps > 1 else None


def draft_extend_backend(factory: Any) -> TorchNativeAttnBackend:
    """REPLACEs ``DraftBackendFactory.create_draft_extend_backend``."""
    return TorchNativeAttnBackend(factory.draft_model_runner)


def _heads(q: torch.Tensor, layer: Any) -> torch.Tensor:
    return q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
