"""Our options on SGLang's command line and in the constructor of its ``ServerArgs``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from tessera.flags import Flags, add_to
from tessera.model_paths import missing
from tessera_patches import apply
from tessera_patches.launch import server_args

_parsed: Flags | None = None
"""What the command line says, while SGLang makes its ``ServerArgs`` of the rest."""


def add_options(result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER ``ServerArgs.add_cli_args``."""
    add_to(parser, Flags.of_environment())


def read_options(original: Callable[..., Any], cls: type, namespace: argparse.Namespace) -> Any:
    """AROUND ``ServerArgs.from_cli_args``, which calls the constructor with the fields that SGLang knows.

    Ends the process where a model is not there.
    """
    global _parsed  # noqa: PLW0603
    if lines := missing(namespace):
        raise SystemExit("\n".join(map(apply.refusal_line, lines)))
    _parsed = Flags.of_environment().updated(vars(namespace))
    try:
        return original(cls, namespace)
    finally:
        _parsed = None


def construct(original: Callable[..., None], args: Any, *values: Any, **named: Any) -> None:
    """AROUND ``ServerArgs.__init__``: our options are keywords, known before SGLang checks its own."""
    with apply.exit_on_error():
        flags = (_parsed or Flags.of_environment()).updated(named)
    for option in fields(Flags):
        named.pop(option.name, None)
    if flags.needs_rows:
        named["enable_return_hidden_states"] = True
    server_args.keep(args, flags)
    original(args, *values, **named)
    server_args.judge(args)
