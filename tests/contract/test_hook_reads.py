"""What hooks touch of SGLang's objects, outside of the adapter, is there in the installed SGLang."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sglang.srt.managers import io_struct
from sglang.srt.server_args import ServerArgs
from transformers import PreTrainedTokenizerBase

from tessera.capabilities import registry
from tessera.refusal import Refusal, field_of
from tessera.versions import within
from tessera_patches.core import places as paths
from tessera_patches.core import source
from tessera_patches.core.seam import Hook, Seam
from tessera_patches.core.source import Function
from tessera_patches.inventory import DECLARED, SEAMS
from tessera_testing import refused_versions
from tessera_testing.engine_reads import extended, reads
from tessera_testing.hook_kinds import UNKNOWN
from tessera_testing.hook_reads import Touch, kind, touches
from tessera_testing.imports import modules as our_modules
from tessera_testing.patch_source import Place, definition, modules
from tessera_testing.sglang_classes import attributes, is_module, members

OTHERS = {
    *(torch.Tensor, torch.nn.Module, torch.cuda.Stream, torch.cuda, str, dict),
    *(FastAPI, StreamingResponse, BaseModel, PreTrainedTokenizerBase),
}
"""What an object may be whose class is not known, beside one of SGLang's classes."""
STARLETTE = {"body_iterator"}
"""What its responses set, and their classes do not have."""
VIEW = {"model", "attention_backends"}
"""What the adapter's view of SGLang's options has beside these."""
OPTIONS = {*getattr(ServerArgs, "__struct_fields__", ())} or {*ServerArgs.__dataclass_fields__}
IN_PASSING = {
    *("ScheduleBatch.reqs", "ScheduleBatch.sampling_info", "ForwardBatch.sampling_info", "EAGLEWorkerV2.device"),
    *("ModelRunnerOutput.logits_output", "RadixAttention.layer_id", "Req.finished_reason"),
    *("TokenizerManager.tokenizer", "GenerateReqInput.rid", "GenerateReqInput.is_single"),
    "EagleDraftExtendInput.select_index",
}
"""Fields of a hook's arguments that the adapter reads as well, on the way to what it returns."""
IN_SOME = {"GenerateReqInput.rid", "GenerateReqInput.is_single", "EagleDraftExtendInput.select_index"}
"""Those that it reads with some versions alone."""
UNUSED = {seam.handler for seam in DECLARED} - {seam.handler for seam in SEAMS}
"""Handlers of other versions alone."""
TOUCHES = [touch for touch in touches() if touch.place.handler not in UNUSED]


def has(owner: str, attribute: str) -> bool:
    """Whether one of SGLang's classes or modules has it, or a class of ours that extends it."""
    if owner == paths.SERVER_ARGS:
        return attribute in OPTIONS | VIEW
    if is_module(owner):
        return hasattr(import_module(owner), attribute)
    return attribute in attributes(owner) | extended(owner)


@cache
def somewhere(attribute: str) -> bool:
    """Whether a class of SGLang's defines or sets it, or what else the object may be has it."""
    if attribute in STARLETTE or any(hasattr(one, attribute) for one in OTHERS):
        return True
    mentioned = re.compile(rf"(def |self\.|^\s+){attribute}\b", re.MULTILINE)
    return any(mentioned.search(text) and attribute in _members(path) for path, text in _texts().items())


@cache
def _texts() -> dict[Path, str]:
    folder = Path(*import_module("sglang").__path__) / "srt"
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


@cache
def _members(path: Path) -> set[str]:
    classes = [node for node in ast.walk(ast.parse(_texts()[path])) if isinstance(node, ast.ClassDef)]
    return set().union(*map(members, classes))


def named(touch: Touch) -> str:
    """As `IN_PASSING` has it."""
    return f"{touch.owner.rpartition('.')[2]}.{touch.attribute}"


def test_the_class_has_the_attribute() -> None:
    """Of each object whose class is known: nearly all."""
    known = [touch for touch in TOUCHES if touch.owner != UNKNOWN]
    assert len(known) > 3 * (len(TOUCHES) - len(known)) > 0
    assert [f"{touch.place}: {named(touch)}" for touch in known if not has(touch.owner, touch.attribute)] == []


def test_some_class_has_the_attribute() -> None:
    """Of the others."""
    missing = [touch for touch in TOUCHES if touch.owner == UNKNOWN and not somewhere(touch.attribute)]
    assert "\n".join(str(touch.place) for touch in missing) == ""


def test_hooks_leave_to_the_adapter_what_it_reads() -> None:
    """But for fields that it reads in passing: each of these is needed. Of options, hooks get its own view."""
    adapted = {(read.owner, read.attribute) for read in reads() if read.owner not in (UNKNOWN, paths.SERVER_ARGS)}
    both = {named(touch) for touch in TOUCHES if (touch.owner, touch.attribute) in adapted}
    assert (both ^ IN_PASSING) - IN_SOME == set()


@pytest.mark.parametrize("seam", [seam for seam in SEAMS if seam.registered], ids=lambda seam: seam.target)
def test_hooks_call_objects_what_they_are(seam: Seam) -> None:
    """The class that a hook's argument is taken for is that of the argument in the function that it hooks."""
    hook, target = definition(seam.handler), source.find(seam.target)
    if isinstance(hook, ast.ClassDef) or isinstance(target, ast.ClassDef):
        return
    module, name = seam.handler.split(":")
    ours = [*hook.args.posonlyargs, *hook.args.args][seam.hook in (Hook.AFTER, Hook.AROUND) :]
    for own, given in zip(ours, [*target.args.posonlyargs, *target.args.args], strict=False):
        taken = kind(Place(module, name, hook, hook), ast.Name(own.arg))
        known = ast.unparse(given.annotation) if given.annotation else ""
        known = seam.target.split(".")[-2] if given.arg == "self" else known
        if taken and known:
            assert taken.rpartition(".")[2] in re.findall(r"\w+", known), own.arg


def test_options_that_logic_reads() -> None:
    """By the name of an option, and of no object behind one. What not all versions have is read with a default."""
    names = {field_of(one.option) for one in _refusals() if one.applies is None and one.option[0] == "-"}
    for name, path in our_modules().items():
        if name.startswith("tessera."):
            names |= set(_read_of(path, "args", "ServerOptions"))
    assert len(names) > 40
    assert names - VIEW - OPTIONS == set()


def _refusals() -> Iterator[Refusal]:
    for _, table in refused_versions.tables():
        yield from (one for one in table if within(version("sglang"), one.versions))


def test_fields_of_requests_that_logic_reads() -> None:
    """SGLang's request, which logic gets as ``request``: its fields, and ours."""
    ours = {name for name, _ in registry.declared_fields(openai=False)}
    found = {"tessera.request_fields": our_modules()["tessera.request_fields"]} | {
        name: path
        for name, path in our_modules().items()
        if re.fullmatch(r"tessera\.capabilities\.\w+\.capability", name)
    }
    names = {one for path in found.values() for one in _read_of(path, "request", "Any")}
    assert names > {"input_ids", "extra_key"}
    assert names - ours - {*io_struct.GenerateReqInput.__dataclass_fields__} == set()


def _read_of(path: Path, name: str, annotation: str) -> Iterator[str]:
    """What a module reads of an argument with this name and annotation; of a lambda's, with this name."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function | ast.Lambda)]
    for function in functions:
        annotations = [arg.annotation for arg in function.args.args if arg.arg == name]
        if not annotations or (annotations[0] is not None and ast.unparse(annotations[0]) != annotation):
            continue
        nodes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
        yield from (node.attr for node in nodes if ast.unparse(node.value) == name)


CASES = {
    "req.no_such": (paths.REQ, "no_such"),
    "batch.reqs": (paths.BATCH, "reqs"),
    "batch.sampling_info.no_such": (paths.BATCH_SAMPLING, "no_such"),
    "getattr(batch, 'no_such', None)": (paths.BATCH, "no_such"),
    "options(manager).no_such": (paths.SERVER_ARGS, "no_such"),
    "speculative_input(batch).no_such": (UNKNOWN, "no_such"),
    "original(batch).no_such": (UNKNOWN, "no_such"),
    "[req.no_such for req in batch.reqs]": (paths.REQ, "no_such"),
}


@pytest.mark.parametrize("code", CASES)
def test_an_access_is_found(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an argument, of its fields, and of what the adapter or SGLang returns."""
    imports = ("batches import speculative_input", "options import options")
    lines = [f"from tessera_patches.engine.{one}" for one in imports]
    tree = ast.parse("\n".join([*lines, f"def hook(original, manager: Any, req: Any, batch: Any): {code}"]))
    monkeypatch.setitem(modules(), "tessera_patches.tried", tree)
    hook = tree.body[-1]
    assert isinstance(hook, ast.FunctionDef)
    found = touches(Place("tessera_patches.tried", "hook", hook, node) for node in ast.walk(hook))
    assert CASES[code] in {(touch.owner, touch.attribute) for touch in found}


@pytest.mark.parametrize("name", ["no_such", "req_pool_idx_"])
def test_a_missing_attribute_is_found(name: str) -> None:
    """Of a class, of the options, of a module, and of all classes."""
    assert not any(has(owner, name) for owner in (paths.REQ, paths.SERVER_ARGS, f"{paths.SPECULATIVE}.eagle_utils"))
    assert not somewhere(name)
