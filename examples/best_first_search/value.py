"""A value head: how many lines are missing until a function returns, guessed from the embedding of the code so far."""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.client import Inference

MODULES = (
    "bisect",
    "fnmatch",
    "heapq",
    "posixpath",
    "shlex",
    "statistics",
    "string",
    "textwrap",
    "calendar",
    "colorsys",
)
MOST_LINES = 12
RIDGE = 30.0

Vectors = npt.NDArray[np.float32]


def embed(client: Inference, texts: list[str]) -> Vectors:
    """The state of the last token of each text: what the model knows when it has read all of it."""
    return client.encode_batch(texts, pooling="last").numpy()


class ValueHead:
    """A linear map from an embedding to the number of missing lines."""

    def __init__(self, vectors: Vectors, lines: Vectors) -> None:
        self._mean, self._scale = vectors.mean(0), vectors.std(0) + 1e-6
        self._base = float(lines.mean())
        x = (vectors - self._mean) / self._scale
        self._weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (lines - self._base))

    def missing(self, vectors: Vectors) -> Vectors:
        """For each embedding ``[n, H]`` the lines that are missing, ``[n]``."""
        missing: Vectors = ((vectors - self._mean) / self._scale @ self._weights + self._base).astype(np.float32)
        return missing

    @classmethod
    def learned(cls, client: Inference, count: int) -> tuple[ValueHead, float]:
        """Learn from functions of the standard library; also the correlation with the truth on functions held out."""
        texts, lines = _examples(count)
        vectors = embed(client, texts)
        held_out = len(texts) // 4
        head = cls(vectors[held_out:], lines[held_out:])
        correlation = np.corrcoef(head.missing(vectors[:held_out]), lines[:held_out])[0, 1]
        return head, float(correlation)


def _examples(count: int) -> tuple[list[str], Vectors]:
    """Beginnings of functions that end with ``return``, and how many lines each lacks; whole functions in a row."""
    found: list[tuple[str, float]] = []
    functions = [function for module in MODULES for function in _functions(module)]
    random.Random(0).shuffle(functions)
    for function in functions:
        lines = function.splitlines()
        found += [("\n".join(lines[:end]), float(len(lines) - end)) for end in range(1, len(lines) + 1)]
    texts, missing = zip(*found[:count], strict=True)
    return list(texts), np.array(missing, np.float32)


def _functions(module: str) -> list[str]:
    """Short functions of a module, without their docstrings."""
    tree = ast.parse((Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py").read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return):
            node.decorator_list = []
            if ast.get_docstring(node) and len(node.body) > 1:
                node.body = node.body[1:]
            text = ast.unparse(node)
            if text.count("\n") < MOST_LINES:
                found.append(text)
    return found
