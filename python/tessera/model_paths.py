"""Folders on the command line that are not there: one line, where SGLang ends with a hundred of a traceback."""

from argparse import Namespace
from pathlib import Path

OPTIONS = ("model_path", "tokenizer_path", "speculative_draft_model_path")


def missing(options: Namespace) -> list[str]:
    """One sentence for each of `OPTIONS` that names a place on this machine where there is nothing."""
    found = {name: getattr(options, name, None) for name in OPTIONS}
    return [
        f"--{name.replace('_', '-')} {path}: no such file or folder"
        for name, path in found.items()
        if path and is_local(path) and not Path(path).exists()
    ]


def is_local(path: str) -> bool:
    """Whether it can only be a path: a hub's names have at most one slash, and a URL has a scheme."""
    return "://" not in path and (path.startswith(("/", "./", "../", "~")) or path.count("/") > 1)
