"""The page on speculative decoding: what it names exists in the installed SGLang or in our tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tessera.versions import installed
from tessera_patches.core import source

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design/speculative-decoding.md").read_text()
ROOTS = {"tessera": "python", "tessera_patches": "patches", "tessera_kernels": "sgl-kernel"}
NAMES = sorted(set(re.findall(r"`((?:sglang|tessera|tessera_patches|tessera_kernels)(?:\.\w+)+)`", PAGE)))

VERSION = PAGE.splitlines()[0].rsplit(" ", 1)[-1]
pytestmark = pytest.mark.skipif(installed() != VERSION, reason=f"the page is about SGLang {VERSION}")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_exists(name: str) -> None:
    """A definition, or a module."""
    package, *parts = name.split(".")
    folder = ROOT / ROOTS[package] / package if package in ROOTS else source._package_root(package)
    if not folder.joinpath(*parts).with_suffix(".py").is_file():
        source.find(name)


def test_methods_without_their_path_exist() -> None:
    """Those that the text calls by their last name alone."""
    for method in ("forward_batch_generation", "_build_trivial_verify_input"):
        source.find(f"sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.{method}")
        assert f"`{method}`" in PAGE
    for method in ("draft_forward", "_draft_extend_for_prefill"):
        source.find(f"sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.{method}")
        assert f"`{method}`" in PAGE


def test_every_algorithm_has_its_row() -> None:
    """Every worker that SGLang can create is in the table."""
    create = source.find("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker")
    imported = {name.name for node in ast.walk(create) if isinstance(node, ast.ImportFrom) for name in node.names}
    workers = {name for name in imported if re.search(r"Worker(V2)?$", name)}
    assert workers == {name.rsplit(".", 1)[-1] for name in NAMES if re.search(r"Worker(V2)?$", name)} - {
        "EagleDraftWorker",
        "AdaptiveWorker",
        "EagleChainWorker",
    }
