"""Verification of drafts of different lengths in one forward: pack the chosen tokens, run, unpack the results.

SGLang has layouts, attention and graphs for it (``ragged_verify.py``), which it uses for DSpark only. The code before
and after the forward in its EAGLE path needs padded rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows, pack_verify
from tessera_patches.core.attachment import Attachment
from tessera_patches.engine.attention import backend_of, decode_graphs
from tessera_patches.engine.batches import rows_of
from tessera_patches.engine.cache import slot_map_of
from tessera_patches.tilespec.draft.trees import DraftTree, prune_trees
from tessera_patches.tilespec.verify.accept import unpack_rows
from tessera_patches.tilespec.verify.layout import PlanViews, layout_of


@dataclass(slots=True)
class PartialVerify(Attachment):
    """A verification of a part of the draft tokens.

    Attributes:
        plan: the number of tokens of each request, on the device.
        tokens: their sum, the only number that the host knows.
        rows: rows of the forward: the size of its graph, or ``tokens``.
        views: cached views of plans.
        padded: the rows of all draft tokens ``[bs * N]``; set by `prepare`.
    """

    plan: VerifyPlan
    tokens: int
    rows: int
    views: PlanViews
    padded: VerifyRows | None = None


def prepare(partial: PartialVerify, verify_input: Any, pool: Any, batch: Any, target_worker: Any) -> tuple[Any, bool]:
    """Do what ``eagle_prepare_for_verify`` does, with packed rows.

    ``verify_input.draft_token`` stays padded, for grammars and acceptance.

    Returns:
        the forward batch, and whether a graph runs it.
    """
    bs, runner = batch.seq_lens.shape[0], target_worker.model_runner
    tree = DraftTree.of(verify_input)
    if tree is not None:
        prune_trees(tree, verify_input, batch.seq_lens, partial.plan, backend_of(runner))
    partial.padded = VerifyRows.with_new_locations(verify_input.draft_token, verify_input.positions)
    packed = VerifyRows(*(one.new_empty(partial.rows) for one in partial.padded))
    slots = KVSlots(slot_map_of(pool), rows_of(batch), batch.seq_lens)
    pack_verify(partial.padded, slots, partial.plan.qo_indptr, packed)

    verify_input.ragged_verify_layout = layout_of(partial.plan, partial.views, bs, partial.tokens, partial.rows)
    verify_input.seq_lens_cpu = batch.seq_lens_cpu
    verify_input.seq_lens_sum = None if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum())
    batch.input_ids, verify_input.positions, batch.out_cache_loc = packed
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    hidden = CaptureHiddenMode.NULL if runner.spec_algorithm.is_standalone() else CaptureHiddenMode.FULL
    forward_batch = ForwardBatch.init_new(
        batch, runner, capture_hidden_mode=hidden, return_hidden_states_before_norm=False
    )
    graphs: Any = decode_graphs(runner)
    on_graph = bool(graphs and graphs.can_run_graph(forward_batch))
    if on_graph:
        graphs.load_batch(forward_batch)
        forward_batch.mark_forward_metadata_ready()
    return forward_batch, on_graph


def unpack(partial: PartialVerify, verify_input: Any, batch: Any, logits_output: Any) -> None:
    """Restore padded tokens, positions and slots, and unpack hidden states. Rows that were not verified are zero.

    Raises:
        RuntimeError: `prepare` was not called.
    """
    if partial.padded is None:
        raise RuntimeError("a verification in part that was never prepared")
    states = logits_output.hidden_states
    if states is not None:
        bs, width = batch.seq_lens.shape[0], verify_input.draft_token_num
        logits_output.hidden_states = unpack_rows(states, partial.plan.qo_indptr, bs, width, 0)
    _, verify_input.positions, batch.out_cache_loc = partial.padded
    batch.input_ids = verify_input.draft_token
    verify_input.ragged_verify_layout = None


def unpack_logits(partial: PartialVerify, verify_input: Any, batch: Any, logits_output: Any) -> None:
    """Unpack logits for SGLang's acceptance. Rows that were not verified are zero, and are not read."""
    bs, width = len(batch.seq_lens), verify_input.draft_token_num
    logits_output.next_token_logits = unpack_rows(logits_output.next_token_logits, partial.plan.qo_indptr, bs, width, 0)
