"""Our options on SGLang's own command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tessera import config
from tessera.flags import Flags, add_to


def add_options(result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER ``ServerArgs.add_cli_args``."""
    add_to(parser)


def read_options(original: Callable[..., Any], cls: type, namespace: argparse.Namespace) -> Any:
    """AROUND ``ServerArgs.from_cli_args``: ours are known before SGLang checks its own, and imply some of them."""
    config.flags = Flags.from_namespace(namespace)
    if config.flags.needs_rows:
        namespace.enable_return_hidden_states = True
    return original(cls, namespace)
