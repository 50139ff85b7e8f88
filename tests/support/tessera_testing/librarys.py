"""The toploc library, which fingerprints are compared with: a test that needs it is skipped where it does not load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tessera.capabilities.fingerprints import codec
from tessera.rows.chunks import CHUNK_ROWS, layout
from tessera.rows.reads import Points

WHY_SKIPPED = "toploc from PyPI is built for torch 2.11 and does not load beside this one"


def build_proofs_base64(*args: Any, **kwargs: Any) -> list[str]:
    """As ``toploc.poly.build_proofs_base64``."""
    poly: Any = pytest.importorskip("toploc.poly", reason=WHY_SKIPPED, exc_type=ImportError)
    proofs: list[str] = poly.build_proofs_base64(*args, **kwargs)
    return proofs


def encoded(rows: torch.Tensor, prompt: int, k: int = 128) -> list[str]:
    """The fingerprints that our encoder builds of a response.

    Args:
        rows: bfloat16 ``[N+M-1, H]``.
        prompt: N.
        k: how many values each proves.
    """
    chunks = [rows[start:end] for start, end in layout(prompt, len(rows))]
    return [one.to_base64() for one in codec.build([largest(chunk, k) for chunk in chunks])]


def proofs(rows: torch.Tensor, prompt: int, k: int = 128) -> list[str]:
    """The library's fingerprints of a response; `encoded` where it does not load: a unit test says that they agree."""
    try:
        from toploc.poly import build_proofs_base64 as librarys
    except ImportError:
        return encoded(rows, prompt, k)
    found: list[str] = librarys([rows[:prompt], *rows[prompt:]], CHUNK_ROWS, k)
    return found


def largest(rows: torch.Tensor, k: int) -> Points:
    """The values of largest magnitude, as the library finds them."""
    flat = rows.reshape(-1)
    places = flat.abs().topk(k).indices
    return Points(places.numpy(), flat[places].view(torch.int16).numpy().view(np.uint16))
