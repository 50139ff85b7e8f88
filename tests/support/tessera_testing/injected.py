"""Prompts with vectors in them, and what Hugging Face makes of the same edit of ``inputs_embeds``."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessera.client.answers import _hidden_states
from tessera.launching.server import Server
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.reference import HuggingFace, relative_error

prompt_of = partial(fresh_prompt, "injection")

FLOAT32_ERROR = 1e-5
H = 256
Matrix = npt.NDArray[np.float32]


def vectors_of(count: int, seed: int, length: float = 1.0) -> Matrix:
    """Vectors about as long as the model's embeddings."""
    found: Matrix = (length * np.random.default_rng(seed).standard_normal((count, H)) / 16).astype("<f4")
    return found


def b64(vectors: Matrix) -> dict[str, Any]:
    """The fields that hold vectors."""
    return {"embeds": base64.b64encode(vectors.tobytes()).decode(), "shape": list(vectors.shape), "dtype": "float32"}


def override(positions: list[int], vectors: Matrix, **fields: Any) -> dict[str, Any]:
    """One object of input_embed_overrides."""
    return {"positions": positions, **b64(vectors), **fields}


def ask(server: Server, prompt: Any, overrides: Any = None, max_new_tokens: int = 5, **fields: Any) -> Any:
    """A greedy answer with all rows."""
    rows: dict[str, Any] = {"return_hidden_states": True, "hidden_states_format": "base64"}
    return generate(server, prompt, max_new_tokens, **{**rows, "input_embed_overrides": overrides, **fields})


def rows_of(answer: Any) -> Matrix:
    """All rows."""
    return _hidden_states(answer["meta_info"])


def replaced(positions: list[int], vectors: Matrix) -> Any:
    """The edit that the reference makes."""

    def edit(embeds: torch.Tensor) -> torch.Tensor:
        embeds[positions] = torch.from_numpy(vectors.copy()).to(embeds.dtype)
        return embeds

    return edit


def edit_of(positions: list[int], vectors: Matrix, *, add: bool = False, matched: bool = False) -> Any:
    """The edit that the reference makes, in float64."""

    def edit(embeds: torch.Tensor) -> torch.Tensor:
        for position, vector in zip(positions, torch.from_numpy(vectors.copy()).double(), strict=True):
            base = embeds[position].double()
            own = vector * base.norm() / vector.norm() if matched else vector
            embeds[position] = (base + own if add else own).float()
        return embeds

    return edit


def check(hf: HuggingFace, prompt: list[int], answer: Any, edit: Any = lambda embeds: embeds) -> None:
    """Every row is the reference's."""
    expected = hf.edited([*prompt, *answer["output_ids"][:-1]], edit)
    found = rows_of(answer)
    if found.shape != expected.shape:
        raise AssertionError(f"rows are {found.shape}, not {expected.shape}")
    error = relative_error(found, expected)
    worst = max(relative_error(row, other) for row, other in zip(found, expected, strict=True))
    if error > FLOAT32_ERROR or worst > FLOAT32_ERROR * 10:
        raise AssertionError(f"rows are off by {error:.1e}, the worst of them by {worst:.1e}")
