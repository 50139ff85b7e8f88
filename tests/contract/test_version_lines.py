"""Lines that are of some versions of SGLang alone: counted, so that they stay few.

What serves a feature that a version lacks is not counted, as the host's cache: in other versions it is needed as it is.
Kernels are free of SGLang.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import TypeGuard

from tessera_patches.inventory import DECLARED
from tessera_testing.imports import modules
from tessera_testing.version_reach import ADAPTER, FEATURE, SINCE

SPECIFIER = re.compile(r"[<>]=?0\.5\.\d|BEFORE_0_5_\d")
HANDLERS = {seam.handler for seam in DECLARED if seam.versions}
LATER = {"set_later", "later_parameters", "later", "LATER", "_LATER"}
"""What names options and parameters of some versions alone: each line that mentions one counts."""
READ = re.compile(
    r"'(token_indices_to_pool|use_fp32_lm_head_output|serve_generate_request)'"
    r"|hasattr\((envs, one\.option|SamplingParams, name)\)|getattr\(args, name, None\)"
)
"""What is looked for because some versions lack it, whoever has it: a field, a function, a variable, an option."""
OTHERS = {
    *("sampling_params", "custom_params", "completion_tokens", "path", "logits_output"),  # other objects of SGLang's
    *("mbs", "extend_seq_lens_tensor", "needs_cpu_seq_lens", "model_config"),  # not in each mode, or of each backend
    *("linear_num_value_heads", "shared_expert_intermediate_size", "full_attention_layer_ids"),  # configurations
    *("model", "layers", "self_attn", "mlp", "gate_up_proj", "down_proj", "logits_processor"),  # models
    *("weight", "quant_method", "set_lora"),  # layers
    *("id", "_args", "_kwargs"),  # Python's
}
"""What some objects have, and others do not, in all versions."""
OURS = {"tessera_injected", "tessera_plan", "_tessera_flags", "_tessera_settings", "_NAME"}
"""What we give some objects."""
NAMING = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg", ast.alias: "name"}
"""Nodes that have a name, and what it is called there."""


def of_some_versions(path: Path, name: str) -> int:
    """Lines, without blank ones: branches and declarations for some versions, and hooks that only these have."""
    text = path.read_text()
    lines = text.splitlines()
    found = {i for i, line in enumerate(lines, start=1) if SPECIFIER.search(line)}
    for node in ast.walk(ast.parse(text)):
        if is_of_some_versions(node, name) or branches(node) or is_later(node):
            found |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return sum(bool(lines[i - 1].strip()) for i in found)


def is_of_some_versions(node: ast.AST, module: str) -> TypeGuard[ast.FunctionDef]:
    """A hook of some versions, what `LATER` names, or a function of the adapter whose summary says since when."""
    if not isinstance(node, ast.FunctionDef):
        return False
    summary = (ast.get_docstring(node) or "").partition("\n")[0]
    since = module.startswith(ADAPTER) and SINCE.search(summary) is not None
    return since or node.name in LATER or f"{module}:{node.name}" in HANDLERS


def is_later(node: ast.AST) -> TypeGuard[ast.expr | ast.arg | ast.keyword | ast.alias]:
    """Whether it is one of the names in `LATER`."""
    return type(node) in NAMING and getattr(node, NAMING[type(node)]) in LATER


def is_look(node: ast.AST) -> TypeGuard[ast.Call]:
    """A ``hasattr``, or a ``getattr`` with a default."""
    return isinstance(node, ast.Call) and (ast.unparse(node.func), len(node.args)) in {("hasattr", 2), ("getattr", 3)}


def branches(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    """A branch by what SGLang has, a look for it, or a call that is told the versions."""
    if isinstance(node, ast.If | ast.IfExp):
        return FEATURE.search(ast.unparse(node.test)) is not None
    if is_look(node) and READ.search(ast.unparse(node)):
        return True
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return any(one.arg == "versions" and SPECIFIER.search(ast.unparse(one.value)) for one in keywords)


def test_what_may_be_missing_is_known() -> None:
    """What a ``hasattr`` asks for, or a ``getattr`` with a default, is of some versions, or in `OTHERS`, or `OURS`."""
    found = {}
    for name, path in modules().items():
        tree = ast.parse(path.read_text() if name.startswith("tessera_patches.") else "")
        for look in filter(is_look, ast.walk(tree)):
            text = ast.unparse(look)
            if not READ.search(text) and not FEATURE.search(text):
                found[ast.unparse(look.args[1]).strip("'")] = f"{name}:{look.lineno}"
    assert {attribute: where for attribute, where in found.items() if attribute not in OTHERS | OURS} == {}
    assert found.keys() == OTHERS | OURS


def test_few_lines_are_of_some_versions_alone() -> None:
    """Without TileSpec, and with it; every handler of a seam of some versions is among them."""
    for handler in HANDLERS:
        module, _, name = handler.partition(":")
        assert callable(getattr(import_module(module), name))
    ours = {name: path for name, path in modules().items() if not name.startswith("tessera_kernels")}
    counted = {name: of_some_versions(path, name) for name, path in ours.items()}
    for branching in ("attention", "batches", "cache", "model", "requests", "routes"):
        assert counted[f"tessera_patches.engine.{branching}"] > 0
    for naming in ("refusal", "request_fields", "rows.refusals", "sampling"):
        assert counted[f"tessera.{naming}"] > 0
    for one in ("tessera.client.local_sampling", "tessera_patches.inject.forward"):  # a model's class, or a client's
        assert counted[one] == 0
    assert 0 < sum(count for name, count in counted.items() if "tilespec" not in name) <= 400
    assert sum(counted.values()) <= 1000
