"""Hooks reach attributes of SGLang's objects only through ``tessera_patches.engine``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tessera_testing.patch_source import PATCHES

PACKAGE = PATCHES / "tessera_patches"
REQUEST = {
    *("req_pool_idx", "kv_committed_len", "kv_allocated_len", "origin_input_ids", "full_untruncated_fill_ids"),
    *("output_ids", "output_ids_through_stop", "extra_key"),
    *("is_retracted", "retraction_count", "inflight_middle_chunks"),
}
BATCH = {"req_pool_indices", "spec_info", "prefix_lens", "extend_lens"}
POOLS = {"req_to_token", "req_to_token_pool", "token_to_kv_pool", "token_to_kv_pool_allocator", "tree_cache"}
RANKS = {"ps", "tp_rank", "dp_rank", "attn_tp_rank", "tp_group"}
CONFIGURATION = {"model_config", "server_args", "_overrides_log"}
ATTENTION = {
    *("attn_backend", "draft_extend_attn_backend", "spec_v2_attn_backends", "decode_cuda_graph_runner"),
    *("war_fastpath_runner", "war_fastpath_read_done_event", "_translate_kv_loc"),
}
RELAY = {"_forward_buf_initialized", "need_topk", "need_hidden_states", "draft_probs_buf"}
NAMES = REQUEST | BATCH | POOLS | RANKS | CONFIGURATION | ATTENTION | RELAY

FIELDS = {
    "fingerprints/verify.py": {"claim.response.output_ids"},
    "http/openai.py": {"request.output_ids"},
    "http/request.py": {"self.output_ids", "self.extra_key"},
}
"""Fields that requests have over HTTP, whose names clients know: they are no attributes of the scheduler's objects."""
MAKERS = {"SimpleNamespace", "TemporaryFields"}
"""Classes whose keywords name attributes."""
READERS = {"getattr", "hasattr", "setattr", "delattr", "attrgetter"}
"""Functions that take the name of an attribute."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the patches outside of ``engine``, by its path."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("engine/"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def accesses(tree: ast.Module) -> Iterator[ast.expr]:
    """Each access of an attribute in `NAMES`: ``x.name``, ``getattr(x, "name")``, or an object made with that name."""
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
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            by_text = function in READERS and any(isinstance(a, ast.Constant) and a.value in NAMES for a in node.args)
            by_keyword = function in MAKERS and any(keyword.arg in NAMES for keyword in node.keywords)
            if by_text or by_keyword:
                yield node


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
    ],
)
def test_an_access_is_found(code: str) -> None:
    """In each way in which the name can be written."""
    assert len(list(accesses(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code", ["a.req_pool_idx_", "f(ps=1)", "from tessera_patches.engine import requests\nrequests.output_ids(req)"]
)
def test_other_names_are_none(code: str) -> None:
    """Neither longer names, nor keywords of a call, nor functions of the adapter."""
    assert list(accesses(ast.parse(code))) == []
