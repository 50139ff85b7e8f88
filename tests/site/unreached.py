"""Seams that no registry installs, as they are where SGLang, or our own code, no longer comes to them.

A change by `tessera_patches.core.changes` is not made. A function that makes another does nothing, and of a class that
SGLang would be given it keeps its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Break = Callable[[ModuleType], None]
_MADE_BY_CHANGES = ("change_class", "set_environment", "filter_log", "truncate", "move_to_front", "before_signal")


def leave_out(names: list[str]) -> None:
    """Leave out those with these names, as `tessera_patches.core.seam.Seam.name` gives them."""
    if not names:
        return
    breaks: dict[str, Break] = {"tessera_patches.core.changes": lambda module: _unmade(module, names)}
    for name in names:
        module, _, handler = name.partition("(")[2].removesuffix(")").partition(":")
        if not module.startswith(("tessera.", "tessera_kernels.")):
            module = f"tessera_patches.{module}"
        if handler in _OTHERS:
            breaks[module] = _OTHERS[handler]
        elif not _by_changes(name):
            breaks[module] = lambda found, handler=handler: setattr(found, handler, lambda *_, **__: None)  # type: ignore[misc]
    sys.meta_path.insert(0, _Breaking(breaks))


def _by_changes(name: str) -> bool:
    """All but the routes and handlers of SGLang's application."""
    return not name.startswith("sglang.srt.entrypoints.http_server.app(") or name.endswith(
        (":extend)", ":add_playground)", ":publish_schema)", ":guard)")
    )


def _unmade(changes: ModuleType, names: list[str]) -> None:
    for name in _MADE_BY_CHANGES:
        setattr(changes, name, _unless_lost(getattr(changes, name), names))
    replace_method, tap, fields = changes.replace_method, changes.Tap, changes.TemporaryFields

    def replace_unless(by: Any, owner: Any, name: str, replacement: Any, place: str = "") -> None:
        if not _lost(names, by, place):
            replace_method(by, owner, name, replacement, place)

    def tap_unless(by: Any, owner: Any, name: str, *on: Any) -> Any:
        return tap(by, None if _lost(names, by, name) else owner, name, *on)

    def fields_unless(by: Any, owner: Any, **values: Any) -> Any:
        return fields(by, owner, **{name: value for name, value in values.items() if not _lost(names, by, name)})

    changes.replace_method, changes.Tap, changes.TemporaryFields = replace_unless, tap_unless, fields_unless  # type: ignore[attr-defined]


def _unless_lost(original: Callable[..., None], names: list[str]) -> Callable[..., None]:
    def unless(by: Any, *args: Any) -> None:
        if not any(_lost(names, by, place) for place in ("", *args) if isinstance(place, str)):
            original(by, *args)

    return unless


def _lost(names: list[str], by: Any, place: str) -> bool:
    from tessera_patches.core import calls
    from tessera_patches.inventory import SEAMS

    try:
        index = calls.index_of(by, place)
    except ValueError:  # this string is no place of a handler that has several
        return False
    return index < len(SEAMS) and SEAMS[index].name in names


def _no_head(module: ModuleType) -> None:
    module.ForwardNotes.__enter__ = lambda self: self


def _stock_workers(module: ModuleType) -> None:
    module._WORKERS = {stock: (stock, stock) for stock in module._WORKERS}  # type: ignore[attr-defined]


def _stock_drafts(module: ModuleType) -> None:
    for name in ("Eagle", "Standalone"):
        for shape in ("Chain", "Tree"):
            getattr(module, f"{name}{shape}Worker").draft_class = getattr(module, f"{name}DraftWorker")


def _stock_penalizer(module: ModuleType) -> None:
    from sglang.srt.sampling.penaltylib import BatchedFrequencyPenalizer

    module.TokenPenalizer = BatchedFrequencyPenalizer  # type: ignore[attr-defined]


def _no_graphs(module: ModuleType) -> None:
    module.RaggedGraphs.__new__ = lambda *_: None


def _captured_by_sglang(module: ModuleType) -> None:
    del module.AdaptiveDraftWorker._capture_cuda_graphs


def _without(name: str, operation: str) -> Break:
    return lambda module: delattr(getattr(module, name), operation)


def _one_width(module: ModuleType) -> None:
    from contextlib import nullcontext

    module.with_draft_tokens = lambda *_: nullcontext()  # type: ignore[attr-defined]


_OTHERS: dict[str, Break] = {
    "ForwardNotes": _no_head,
    **{f"{name}{shape}Worker": _stock_workers for name in ("Eagle", "Standalone") for shape in ("Chain", "Tree")},
    **{f"{name}{shape}Drafts": _stock_drafts for name in ("Eagle", "Standalone") for shape in ("Chain", "Tree")},
    "RaggedGraphs": _no_graphs,
    "TokenPenalizer": _stock_penalizer,
    "AdaptiveDraftWorker": _captured_by_sglang,
    "with_draft_tokens": _one_width,
    "GatheredRows": _without("GatheredRows", "__getitem__"),
    "ArgmaxedLogits": _without("ArgmaxedLogits", "__torch_function__"),
}


class _Breaking(MetaPathFinder):
    """Breaks modules when they have been imported."""

    def __init__(self, breaks: dict[str, Break]) -> None:
        self._breaks = breaks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The usual spec of a module that is to be broken."""
        act = self._breaks.get(name)
        spec = None if act is None else PathFinder.find_spec(name, path, target)
        if act is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
