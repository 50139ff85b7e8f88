"""Hooks reach attributes of SGLang's objects only through ``tessera_patches.engine``.

They are found by name, for objects have no types in hooks: by names listed here, by those that SGLang's source gives
to a class of which the adapter alone knows objects, and by how hooks call such objects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch

from tessera_testing.patch_source import PATCHES, Place, called, is_mark, is_sglangs, places
from tessera_testing.sglang_classes import attributes

PACKAGE = PATCHES / "tessera_patches"
REQUEST = {
    *("req_pool_idx", "kv_committed_len", "kv_allocated_len", "origin_input_ids", "full_untruncated_fill_ids"),
    *("output_ids", "output_ids_through_stop", "extra_key", "session"),
    *("is_retracted", "retraction_count", "inflight_middle_chunks", "cached_tokens"),
    *("return_routed_experts", "return_indexer_topk", "return_sampling_mask", "multimodal_inputs"),
}
BATCH = {
    *("req_pool_indices", "spec_info", "prefix_lens", "extend_lens", "waiting_queue", "out_cache_loc"),
    *("extend_seq_lens_tensor", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "is_all_greedy", "is_any_greedy"),
}
POOLS = {"req_to_token", "req_to_token_pool", "token_to_kv_pool", "token_to_kv_pool_allocator", "tree_cache"}
RANKS = {"ps", "tp_rank", "dp_rank", "attn_tp_rank", "tp_group"}
CONFIGURATION = {
    *("model_config", "server_args", "_overrides_log", "context_len", "max_req_input_len", "page_size"),
    *("get_spec", "speculative_accept_threshold_single", "speculative_accept_threshold_acc"),
    *("speculative_use_rejection_sampling", "preferred_sampling_params"),
    *("model_dtype", "is_draft_worker", "tp_worker", "target_worker", "spec_algorithm", "is_generation"),
    *("num_reserved_tokens", "get_server_args", "get_attention_backends", "hf_text_config", "attention_arch"),
}
ATTENTION = {
    *("attn_backend", "draft_extend_attn_backend", "spec_v2_attn_backends", "decode_cuda_graph_runner"),
    *("war_fastpath_runner", "war_fastpath_read_done_event", "_translate_kv_loc", "_get_attention_backend"),
}
GRAPHS = {"buffers", "_make_graph_key"}
LOGITS = {
    *("logit_scale", "final_logit_softcapping", "rl_on_policy_target", "use_fp32_lm_head", "use_fp32_lm_head_output"),
    *("do_tensor_parallel_all_gather", "do_tensor_parallel_all_gather_dp_attn"),
}
RELAY = {"_forward_buf_initialized", "need_topk", "need_hidden_states", "draft_probs_buf"}
NAMES = REQUEST | BATCH | POOLS | RANKS | CONFIGURATION | ATTENTION | GRAPHS | LOGITS | RELAY

CLASSES = (
    "managers.schedule_batch.ReqKvInfo",
    "mem_cache.memory_pool.ReqToTokenPool",
    "mem_cache.memory_pool.KVCache",
    "mem_cache.allocator.BaseTokenToKVPoolAllocator",
    "mem_cache.allocator.swa.SWATokenToKVPoolAllocator",
    "mem_cache.radix_cache.RadixCache",
    "distributed.parallel_state.GroupCoordinator",
    "configs.model_config.ModelConfig",
    "layers.attention.flashattention_backend.FlashAttentionBackend",
    "layers.attention.triton_backend.TritonAttnBackend",
    "layers.attention.torch_native_backend.TorchNativeAttnBackend",
)
"""All their attributes are the adapter's. A subclass has its own, which ``tests/contract/test_engine.py`` checks."""
OTHERS = {*dir(torch), *dir(torch.Tensor), *dir(dict)} | {
    *("speculative_num_steps", "speculative_num_draft_tokens", "model_path"),  # options
    *("forward", "scaling", "vocab_size", "is_generation", "qo_indptr"),
    *("device_module", "memory_saver_adapter", "layer_num", "reset"),
}
"""Names that attributes of other objects have, too."""
OBJECTS = {"backend", "pool", "allocator", "cache", "ranks"}
"""How hooks call objects of these classes: no attribute of theirs is read."""

FIELDS = {
    "fingerprints/verify.py": {"claim.response.output_ids"},
    "http/request.py": {"self.output_ids", "self.extra_key"},
}
"""Fields that requests have over HTTP, whose names clients know: they are no attributes of the scheduler's objects."""
MAKERS = {"SimpleNamespace", "TemporaryFields"}
"""Classes whose keywords name attributes."""
READERS = {"getattr", "hasattr", "setattr", "delattr", "attrgetter"}
"""Functions that take the name of an attribute."""
COMPUTED = {
    "engine.options:Resolved": "whatever its view of options has",
    "engine.options:changed": "options, as their class declares them",
    "engine.options:later_parameters": "whether this SGLang has it is the question",
    "http.info:embedding_options": "options of ours",
    "http.openai:_check_cache_keys": "fields that clients know",
    "http.openai:_fields": "fields of ours",
    "launch.server_args:_set": "variables, which some versions have",
    "tilespec.extend.offsets:LastQueryTriton": "fields, as their class declares them",
    "tilespec.start.facts:facts": "options, which `tests/contract/test_moe_runners.py` looks for",
}
"""Where the name of an attribute is computed, and what it is of."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the patches outside of ``engine``, by its path."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("engine/"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def accesses(tree: ast.Module) -> Iterator[ast.expr | ast.ImportFrom]:
    """Each access of a name in `NAMES`: ``x.name``, ``getattr(x, "name")``, an object made with it, or its import."""
    adapters = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tessera_patches.engine"
        for name in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in NAMES and not (isinstance(node.value, ast.Name) and node.value.id in adapters):
                yield node
        elif isinstance(node, ast.ImportFrom):
            if any(name.name in NAMES for name in node.names) and (node.module or "").startswith("sglang."):
                yield node
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            by_text = function in READERS and any(isinstance(a, ast.Constant) and a.value in NAMES for a in node.args)
            by_keyword = function in MAKERS and any(keyword.arg in NAMES for keyword in node.keywords)
            if by_text or by_keyword:
                yield node


def test_classes_of_sglang_are_known_to_engine_alone() -> None:
    """The list says where another module reads one of their attributes."""
    theirs = {name for path in CLASSES for name in attributes(f"sglang.srt.{path}")} - OTHERS
    found = [
        str(place)
        for place in places()
        if isinstance(place.node, ast.Attribute)
        and not place.module.startswith("tessera_patches.engine.")
        and (place.node.attr in theirs or ast.unparse(place.node.value) in OBJECTS)
        and ast.unparse(place.node.value) != "super()"
        and is_sglangs(place, place.node)
    ]
    assert "\n".join(found) == ""


def computes_name(place: Place) -> bool:
    """Whether a name that is neither written out nor a mark of ours is looked up in an object that may be SGLang's."""
    node = place.node
    if not isinstance(node, ast.Call) or called(node) not in READERS:
        return False
    *owner, name = node.args[:2]
    written = isinstance(name, ast.Constant) or is_mark(place, name)
    return not written and all(is_sglangs(place, ast.Attribute(one, "")) for one in owner)


def test_names_are_written_out() -> None:
    """Nobody looks for one that is computed. Each exception is needed."""
    found = {place.handler.removeprefix("tessera_patches.") for place in places() if computes_name(place)}
    assert found ^ COMPUTED.keys() == set()


@pytest.mark.parametrize(
    ("code", "computes"),
    [
        *(("getattr(req, name)", True), ("hasattr(self.a, name)", True), ("attrgetter(name)", True)),
        *(("getattr(req, 'rid')", False), ("getattr(req, _NAME)", False), ("getattr(self, name)", False)),
    ],
)
def test_a_computed_name_is_found(code: str, *, computes: bool) -> None:
    """Whatever it is of, but for our own object; ``_NAME`` is the mark that `tessera_patches.rows.state` has."""
    assert computes_name(Place("tessera_patches.rows.state", "", None, ast.parse(code, mode="eval").body)) == computes


@pytest.mark.parametrize(("name", "tree"), [pytest.param(name, tree, id=name) for name, tree in sources()])
def test_attributes_of_sglang_are_read_in_engine(name: str, tree: ast.Module) -> None:
    """The message names the lines."""
    found = [f"{name}:{node.lineno}: {ast.unparse(node)}" for node in accesses(tree)]
    assert [line for line in found if line.partition(": ")[2] not in FIELDS.get(name, ())] == []


def test_every_exception_is_needed() -> None:
    """A field that is no longer read leaves no entry."""
    found = {name: {ast.unparse(node) for node in accesses(tree)} for name, tree in sources()}
    assert {name: fields & found[name] for name, fields in FIELDS.items()} == FIELDS


@pytest.mark.parametrize(
    "code",
    [
        "a.b.req_pool_idx",
        "a.tree_cache = 1",
        "getattr(a, 'ps', None)",
        "SimpleNamespace(spec_info=2)",
        "TemporaryFields(a, attn_backend=1)",
        "engine.ps",
        "from sglang.srt.runtime_context import get_parallel, get_spec",
    ],
)
def test_an_access_is_found(code: str) -> None:
    """In each way in which the name can be written."""
    assert len(list(accesses(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        *("a.req_pool_idx_", "f(ps=1)", "from tessera_patches.engine.options import page_size"),
        "from tessera_patches.engine import requests\nrequests.output_ids(req)",
    ],
)
def test_other_names_are_none(code: str) -> None:
    """Neither longer names, nor keywords of a call, nor functions of the adapter."""
    assert list(accesses(ast.parse(code))) == []
