"""Verify drafts of different sizes in one forward: pack the chosen tokens, run, and put the results back.

SGLang has the layout, the attention and the graphs for this (``ragged_verify.py``), for its DSpark drafts alone. Its
EAGLE path before and after the forward knows drafts of one size, so that is what it is given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows, pack_verify
from tessera_patches.core.attachment import Attachment
from tessera_patches.tilespec.draft.trees import DraftTree, lay_out
from tessera_patches.tilespec.verify.accept import dense
from tessera_patches.tilespec.verify.layout import PlanViews, layout_of


@dataclass(slots=True)
class Cut(Attachment):
    """One verification of part of the drafted tokens; none where all are verified.

    Attributes:
        plan: how many tokens of each request, on the device.
        tokens: of the whole batch; the host knows no more than this sum.
        rows: what the forward is padded to: the size of its graph, or ``tokens``.
        views: of plans, kept from step to step.
        dense: every drafted token ``[bs * N]``; known from `prepare` on.
    """

    plan: VerifyPlan
    tokens: int
    rows: int
    views: PlanViews
    dense: VerifyRows | None = None


def prepare(cut: Cut, verify_input: Any, pool: Any, batch: Any, target_worker: Any) -> tuple[Any, bool]:
    """What ``eagle_prepare_for_verify`` does, for packed rows. Returns the forward batch, and whether it is a graph's.

    ``verify_input.draft_token`` stays dense: grammars and the acceptance read it.
    """
    bs, runner = batch.seq_lens.shape[0], target_worker.model_runner
    tree = DraftTree.of(verify_input)
    if tree is not None:
        lay_out(tree, verify_input, batch.seq_lens, cut.plan, runner.attn_backend)
    cut.dense = VerifyRows.with_new_locations(verify_input.draft_token, verify_input.positions)
    packed = VerifyRows(*(one.new_empty(cut.rows) for one in cut.dense))
    slots = KVSlots(pool.req_to_token, batch.req_pool_indices, batch.seq_lens)
    pack_verify(cut.dense, slots, cut.plan.qo_indptr, packed)

    verify_input.ragged_verify_layout = layout_of(cut.plan, cut.views, bs, cut.tokens, cut.rows)
    verify_input.seq_lens_cpu = batch.seq_lens_cpu
    verify_input.seq_lens_sum = None if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum())
    batch.input_ids, verify_input.positions, batch.out_cache_loc = packed
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    hidden = CaptureHiddenMode.NULL if runner.spec_algorithm.is_standalone() else CaptureHiddenMode.FULL
    forward_batch = ForwardBatch.init_new(
        batch, runner, capture_hidden_mode=hidden, return_hidden_states_before_norm=False
    )
    graphs = runner.decode_cuda_graph_runner
    on_graph = bool(graphs and graphs.can_run_graph(forward_batch))
    if on_graph:
        graphs.load_batch(forward_batch)
        forward_batch.mark_forward_metadata_ready()
    return forward_batch, on_graph


def restore(cut: Cut, verify_input: Any, batch: Any, logits_output: Any) -> None:
    """Give back what `prepare` took: tokens, positions and slots of full drafts, and their hidden states.

    Those of rows that were not verified are zero.
    """
    if cut.dense is None:
        raise RuntimeError("a verification in part that was never prepared")
    states = logits_output.hidden_states
    if states is not None:
        bs, width = batch.seq_lens.shape[0], verify_input.draft_token_num
        logits_output.hidden_states = dense(states, cut.plan.qo_indptr, bs, width, 0)
    _, verify_input.positions, batch.out_cache_loc = cut.dense
    batch.input_ids = verify_input.draft_token
    verify_input.ragged_verify_layout = None


def spread_logits(cut: Cut, verify_input: Any, batch: Any, logits_output: Any) -> None:
    """Logits of full drafts, where SGLang looks for accepted rows; zero, and not looked at, where none was verified."""
    bs, width = len(batch.seq_lens), verify_input.draft_token_num
    logits_output.next_token_logits = dense(logits_output.next_token_logits, cut.plan.qo_indptr, bs, width, 0)
