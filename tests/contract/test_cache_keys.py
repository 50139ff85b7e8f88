"""The key under which we look for a prompt's rows is that of SGLang's prefix cache."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from tessera_patches.engine.cache import radix_key
from tessera_testing.marks import is_installed


@pytest.mark.skipif(is_installed("<0.5.18"), reason="its keys have no salt")
@pytest.mark.parametrize("salt", ["a", None])
def test_a_key_has_the_salt(salt: str | None) -> None:
    """Or a request would be answered from rows of whoever has another one."""
    req: Any = SimpleNamespace(origin_input_ids=array("q", [1, 2]), extra_key="adapter", cache_salt=salt)
    key = radix_key(req)
    assert (key.cache_salt, key.extra_key) == (req.cache_salt, req.extra_key)
