"""Verification of drafts of different lengths in one forward: pack the chosen tokens, run, unpack the results.

SGLang has layouts, attention and graphs for it (``ragged_verify.py``), which it uses for DSpark only. The code before
and after the forward in its EAGLE path needs padded rows.
"""

from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows, pack_verify
from tessera_patches.engine.attention import backend_of, decode_graphs
from tessera_patches.engine.batches import batch_size, rows_of, seq_lens, set_new_slots, take_host_lens
from tessera_patches.engine.cache import slot_map_of
from tessera_patches.engine.model import is_standalone
from tessera_patches.engine.workers import worker_runner
from tessera_patches.tilespec.step import Step
from tessera_patches.tilespec.verify.accept import unpack_rows
from tessera_patches.tilespec.verify.prune import prune_trees


def prepare(step: Step, verify_input: Any, pool: Any, batch: Any, target_worker: Any) -> tuple[Any, bool]:
    """Do what ``eagle_prepare_for_verify`` does, with packed rows.

    ``verify_input.draft_token`` stays padded, for grammars and acceptance.

    Returns:
        the forward batch, and whether a graph runs it.

    Raises:
        RuntimeError: the step packs no rows.
    """
    if step.plan is None or step.rows is None:
        raise RuntimeError("tessera: a verification in part without a plan; this is a bug")
    bs, runner = batch_size(batch), worker_runner(target_worker)
    if step.candidates is not None:
        arguments = step.candidates, verify_input, seq_lens(batch), step.plan, backend_of(runner)
        step.mask_indptr = prune_trees(*arguments)
    step.padded = VerifyRows.with_new_locations(verify_input.draft_token, verify_input.positions)
    packed = VerifyRows(*(one.new_empty(step.rows) for one in step.padded))
    slots = KVSlots(slot_map_of(pool), rows_of(batch), seq_lens(batch))
    pack_verify(step.padded, slots, step.qo_indptr, packed)

    verify_input.ragged_verify_layout = RaggedVerifyLayout.from_verify_lens_device(
        verify_lens=step.plan.verify_lens[:bs], graph_num_tokens=step.rows
    )
    take_host_lens(verify_input, batch)
    batch.input_ids, verify_input.positions, slots_of_rows = packed
    set_new_slots(batch, slots_of_rows)
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    hidden = CaptureHiddenMode.NULL if is_standalone(runner) else CaptureHiddenMode.FULL
    forward_batch = ForwardBatch.init_new(
        batch, runner, capture_hidden_mode=hidden, return_hidden_states_before_norm=False
    )
    graphs: Any = decode_graphs(runner)
    on_graph = bool(graphs and graphs.can_run_graph(forward_batch))
    if on_graph:
        graphs.load_batch(forward_batch)
        forward_batch.mark_forward_metadata_ready()
    return forward_batch, on_graph


def unpack(step: Step, verify_input: Any, batch: Any, logits_output: Any) -> None:
    """Restore padded tokens, positions and slots, and unpack hidden states. Rows that were not verified are zero.

    Raises:
        RuntimeError: `prepare` was not called.
    """
    if step.padded is None:
        raise RuntimeError("tessera: a verification in part that was never prepared; this is a bug")
    states = logits_output.hidden_states
    if states is not None:
        bs, width = batch_size(batch), verify_input.draft_token_num
        logits_output.hidden_states = unpack_rows(states, step.qo_indptr, bs, width, 0)
    _, verify_input.positions, slots = step.padded
    set_new_slots(batch, slots)
    batch.input_ids = verify_input.draft_token
    verify_input.ragged_verify_layout = None


def unpack_logits(step: Step, verify_input: Any, batch: Any, logits_output: Any) -> None:
    """Unpack logits for SGLang's acceptance. Rows that were not verified are zero, and are not read."""
    bs, width = batch_size(batch), verify_input.draft_token_num
    logits_output.next_token_logits = unpack_rows(logits_output.next_token_logits, step.qo_indptr, bs, width, 0)
