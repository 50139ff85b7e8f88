"""Our options on SGLang's command line and in the constructor of its ``ServerArgs``."""

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from sglang.srt.server_args import ServerArgs

from tessera.flags import Flags, add_to
from tessera.model_paths import missing
from tessera_patches import apply
from tessera_patches.core.changes import replace_method
from tessera_patches.engine.options import RESOLVES_LATER, is_resolved
from tessera_patches.launch import server_args

_parsed: Flags | None = None
"""What the command line says, while SGLang makes its ``ServerArgs`` of the rest."""


def add_options(result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER ``ServerArgs.add_cli_args``."""
    add_to(parser, Flags.of_environment())


def read_options(original: Callable[..., Any], cls: type, namespace: argparse.Namespace) -> Any:
    """AROUND ``ServerArgs.from_cli_args``, which calls the constructor with the fields that SGLang knows.

    Ends the process where a model is not there, and where what it read did not reach the constructor.
    """
    global _parsed  # noqa: PLW0603
    if lines := missing(namespace):
        raise SystemExit("\n".join(map(apply.refusal_line, lines)))
    server_args.note_command_line()
    _parsed = Flags.of_environment().updated(vars(namespace))
    try:
        args = original(cls, namespace)
        if RESOLVES_LATER:
            server_args.attach_flags(args, _parsed)
    finally:
        _parsed = None
    if not server_args.has_flags(args):
        raise SystemExit(apply.refusal_line("SGLang did not call our hook on ServerArgs.__init__"))
    return args


def construct(original: Callable[..., None], args: Any, *values: Any, **named: Any) -> None:
    """AROUND ``ServerArgs.__init__``: our options are keywords, known before SGLang checks its own."""
    flags, stock = _divided(named)
    server_args.attach_flags(args, flags)
    original(args, *values, **stock)
    server_args.refuse_unsupported(args)


def accept_keywords() -> None:
    """Let ``Engine`` make its options by `construct_for_engine`, where their constructor has no hook.

    Processes of a server do not start one, so it is not imported there.
    """
    starts_one = multiprocessing.parent_process() is None or "sglang.srt.entrypoints.engine" in sys.modules
    if RESOLVES_LATER and starts_one:
        from sglang.srt.entrypoints.engine import Engine

        replace_method(Engine, "server_args_class", staticmethod(construct_for_engine))


def construct_for_engine(**named: Any) -> Any:
    """Called by ``Engine`` as its ``server_args_class``: our options are keywords.

    Other callers of the constructor cannot give them, because it is compiled and has no hook.
    """
    flags, stock = _divided(named)
    args = ServerArgs(**stock)
    server_args.attach_flags(args, flags)
    return args


def resolve(original: Callable[..., None], args: Any) -> None:
    """AROUND ``ServerArgs.resolve_once``, which each process calls that uses the options."""
    if is_resolved(args):
        return
    if not hasattr(args, "_tessera_flags"):
        server_args.attach_flags(args, Flags.of_environment())
    if args._tessera_flags.needs_rows:
        args.enable_return_hidden_states = True
    original(args)
    server_args.refuse_unsupported(args)


def _divided(named: dict[str, Any]) -> tuple[Flags, dict[str, Any]]:
    """Our options, and SGLang's."""
    with apply.exit_on_error():
        flags = (_parsed or Flags.of_environment()).updated(named)
    ours = {option.name for option in fields(Flags)}
    stock = {name: value for name, value in named.items() if name not in ours}
    if flags.needs_rows:
        stock["enable_return_hidden_states"] = True
    return flags, stock
