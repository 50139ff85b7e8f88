"""Our options on SGLang's command line and among the keywords of its ``Engine``."""

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from sglang.srt.server_args import ServerArgs

from tessera.flags import Flags, add_to
from tessera.model_paths import missing
from tessera_patches.core import apply
from tessera_patches.core.changes import replace_method
from tessera_patches.engine.options import is_resolved, return_states
from tessera_patches.launch import server_args

_given: Flags | None = None
"""Our options while SGLang makes its ``ServerArgs``, which up to 0.5.19 are resolved by their constructor."""


def add_options(result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER ``ServerArgs.add_cli_args``."""
    add_to(parser, Flags.of_environment())


def read_options(original: Callable[..., Any], cls: type, namespace: argparse.Namespace) -> Any:
    """AROUND ``ServerArgs.from_cli_args``, which calls the constructor with the fields that SGLang knows.

    Ends the process where a model is not there, and where our options are not among SGLang's afterwards.
    """
    if lines := missing(namespace):
        raise SystemExit("\n".join(map(apply.refusal_line, lines)))
    server_args.note_command_line()
    return _construct(Flags.of_environment().updated(vars(namespace)), original, cls, namespace)


def accept_keywords() -> None:
    """Let ``Engine`` make its options by `construct_for_engine`.

    Processes of a server do not start one, so it is not imported there.
    """
    if multiprocessing.parent_process() is None or "sglang.srt.entrypoints.engine" in sys.modules:
        from sglang.srt.entrypoints.engine import Engine

        replace_method(accept_keywords, Engine, "server_args_class", staticmethod(construct_for_engine))


def construct_for_engine(**named: Any) -> Any:
    """Called by ``Engine`` as its ``server_args_class``: our options are keywords.

    Other callers of the constructor cannot give them: since 0.5.20 it is compiled, and cannot be hooked.
    """
    with apply.exit_on_error():
        flags = Flags.of_environment().updated(named)
    ours = {option.name for option in fields(Flags)}
    return _construct(flags, ServerArgs, **{name: value for name, value in named.items() if name not in ours})


def _construct(flags: Flags, make: Callable[..., Any], *values: Any, **named: Any) -> Any:
    """Have SGLang construct its options, with ours attached; end the process if they are not among them afterwards."""
    global _given  # noqa: PLW0603
    _given = flags
    try:
        args = make(*values, **named)
    finally:
        _given = None
    if not server_args.has_flags(args):
        if is_resolved(args):  # by the constructor
            raise SystemExit(apply.refusal_line("SGLang did not call our hook on ServerArgs.__post_init__"))
        server_args.attach_flags(args, flags)
    return args


def resolve(original: Callable[..., None], args: Any) -> None:
    """AROUND ``ServerArgs.resolve_once``, which each process calls that uses the options. Earlier: the constructor."""
    if is_resolved(args):
        return
    if not server_args.has_flags(args):
        server_args.attach_flags(args, _given or Flags.of_environment())
    if args._tessera_flags.needs_rows:
        return_states(args)
    original(args)
    server_args.refuse_unsupported(args)
