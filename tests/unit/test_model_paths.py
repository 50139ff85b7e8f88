"""Which paths on the command line are refused before SGLang looks for them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tessera.model_paths import is_local, missing


@pytest.mark.parametrize("path", ["/models/a", "./a", "../a", "~/a", "tests/support/models/tinyy"])
def test_these_can_only_be_paths(path: str) -> None:
    """Absolute, relative with a dot, or deeper than a hub's names are."""
    assert is_local(path)


@pytest.mark.parametrize("path", ["gpt2", "Qwen/Qwen3-8B", "s3://bucket/folder/model", "instance://host:1/a/b"])
def test_these_may_be_elsewhere(path: str) -> None:
    """Names of a hub, and URLs."""
    assert not is_local(path)
    assert missing(Namespace(model_path=path)) == []


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Each option that names nothing, and no option that names something or has no value."""
    draft = str(tmp_path / "draft")
    options = Namespace(model_path=str(tmp_path), tokenizer_path=None, speculative_draft_model_path=draft)
    assert missing(options) == [f"--speculative-draft-model-path {draft}: no such file or folder"]
