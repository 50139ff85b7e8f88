"""Real code: functions and classes of Python's standard library, as text, by /encode."""

from __future__ import annotations

import ast
import json
import shutil
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx

from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, relative_error

COUNT = 200
LONGEST = 2500
"""Characters; some 1,000 tokens of the tiny model."""
FLOAT32_ERROR = 1e-5


def snippets() -> Iterator[str]:
    """Definitions in modules that every Python has."""
    for module in (json, tarfile, shutil, textwrap, ast):
        folder = Path(str(module.__file__))
        for path in sorted(folder.parent.glob("*.py")) if folder.stem == "__init__" else [folder]:
            text = path.read_text()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    segment = ast.get_source_segment(text, node) or ""
                    if 20 <= len(segment) <= LONGEST:
                        yield segment


def test_two_hundred_snippets(server: Server, hf: HuggingFace) -> None:
    """The mean of each is Hugging Face's in float32."""
    texts = list(dict.fromkeys(snippets()))[:COUNT]
    assert len(texts) == COUNT
    vectors = httpx.post(f"{server.url}/encode", json={"text": texts}, timeout=240).raise_for_status().json()
    errors = [
        relative_error(vector, hf.pooled(hf.tokenizer(text)["input_ids"], [], "mean", "prompt"))
        for text, vector in zip(texts, vectors["embeddings"], strict=True)
    ]
    assert max(errors) <= FLOAT32_ERROR
