"""What hooks on a GPU are given, and what of a graph is read after another one: by SGLang's source, without a GPU."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from sglang.srt.environ import envs
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from tessera.tilespec.refusals import ENVIRONMENT
from tessera.versions import installed, within
from tessera_patches.core import source
from tessera_patches.core.places import SPECULATIVE, TARGET_GRAPHS, TRITON, WORKERS
from tessera_patches.engine.attention import extend_batch, verify_batch

FLASH = "sglang.srt.layers.attention.flashattention_backend.FlashAttentionBackend"
EXTEND_GRAPHS = f"{SPECULATIVE}.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner"


def text(target: str) -> str:
    """A definition of SGLang's, as ``ast`` writes it."""
    return ast.unparse(source.find(target))


def calls(target: str, name: str) -> list[ast.Call]:
    """The calls of a method on ``self`` in a class or a function."""
    found = [node for node in ast.walk(source.find(target)) if isinstance(node, ast.Call)]
    return [call for call in found if ast.unparse(call.func) == f"self.{name}"]


@pytest.mark.parametrize(
    ("method", "read"),
    [("_update_target_verify_buffers", verify_batch), ("_update_draft_extend_buffers", extend_batch)],
)
def test_offsets_of_triton_are_filled_by_place(method: str, read: Any) -> None:
    """Each place has what the adapter takes it for."""
    definition = source.find(f"{TRITON}.{method}")
    assert isinstance(definition, source.Function)
    _, *names = [parameter.arg for parameter in definition.args.args]
    found: tuple[Any, ...] = read(*names)
    assert found == ("bs", "seq_lens", "req_pool_indices", "spec_info", "plan" if "plan" in names else None)
    (call,) = calls(TRITON, method)
    assert not call.keywords
    assert [ast.unparse(argument) for argument in call.args] == names


def test_offsets_of_flash_attention_are_filled_by_name() -> None:
    """And these names are among them."""
    ours = {"bs", "req_pool_indices", "seq_lens", "encoder_lens", "forward_mode", "spec_info"}
    found = calls(FLASH, "_apply_cuda_graph_metadata")
    assert found
    for call in found:
        assert not call.args
        assert ours <= {keyword.arg for keyword in call.keywords}


def test_a_ragged_graph_has_room_for_whole_drafts() -> None:
    """Triton's attention takes the most tokens of a request from the input that a graph is captured with."""
    none: Any = dict.fromkeys(
        ("draft_token", "custom_mask", "positions", "seq_lens_sum", "seq_lens_cpu", "retrieve_cum_len")
    )
    links: Any = dict.fromkeys(("retrieve_index", "retrieve_next_token", "retrieve_next_sibling"))
    hidden = CaptureHiddenMode.FULL
    drafts = EagleVerifyInput(**none, **links, spec_steps=3, topk=1, draft_token_num=4, capture_hidden_mode=hidden)
    assert drafts.num_tokens_per_req == drafts.draft_token_num == 4
    assert "num_draft_tokens" in text(f"{TARGET_GRAPHS}.get_spec_info")


def test_what_is_read_after_another_graph_is_copied() -> None:
    """Proposals are read after the target's graph, states in the next step. Both lie in the memory of graphs.

    Where all graphs are captured on one stream, torch gives one graph the memory that another one has done with; each
    replay writes there. What is captured on a stream of its own has memory of its own.
    """
    own_streams = "get_or_create_global_graph_capture_stream" not in text(TARGET_GRAPHS)
    assert own_streams or "draft_probs = draft_probs.clone()" in text(f"{WORKERS}.EagleDraftWorker.draft")
    assert own_streams or "hidden_states=out.hidden_states[:raw_bs].clone()" in text(f"{EXTEND_GRAPHS}.execute")


def test_switches_that_are_refused_are_sglangs() -> None:
    """By their names; one is of later versions alone."""
    later = {"SGLANG_ENABLE_METADATA_GLUE_GRAPH"} if within(str(installed()), "<0.5.18") else set()
    assert {one.option for one in ENVIRONMENT if not hasattr(envs, one.option)} == later
