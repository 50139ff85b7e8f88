"""The toploc library, which fingerprints are compared with: a test that needs it is skipped where it does not load."""

from __future__ import annotations

from typing import Any

import pytest

WHY_SKIPPED = "toploc from PyPI is built for torch 2.11 and does not load beside this one"


def build_proofs_base64(*args: Any, **kwargs: Any) -> list[str]:
    """As ``toploc.poly.build_proofs_base64``."""
    poly: Any = pytest.importorskip("toploc.poly", reason=WHY_SKIPPED, exc_type=ImportError)
    proofs: list[str] = poly.build_proofs_base64(*args, **kwargs)
    return proofs
