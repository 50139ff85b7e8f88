"""What the row store takes of the GPU's and the host's memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tessera import config
from tessera.flags import Flags
from tessera_patches.engine import cache
from tessera_patches.rows import memory


@pytest.mark.parametrize(("on_host", "counted"), [(False, [512]), (True, [])])
def test_rows_are_counted_where_the_gpu_keeps_them(
    monkeypatch: pytest.MonkeyPatch, *, on_host: bool, counted: list[int]
) -> None:
    """A token of 256 bfloat16 values costs 512 bytes of the KV pool, or none."""
    found: list[int] = []
    monkeypatch.setattr(config, "flags", Flags(rows_on_host=on_host))
    monkeypatch.setattr(cache, "add_token_bytes", lambda _, size: found.append(size))
    monkeypatch.setattr(memory, "hidden_size", lambda _: 256)
    kvc: Any = SimpleNamespace(is_draft_worker=False, model_config=SimpleNamespace(dtype=torch.bfloat16))
    memory.count_rows(object(), kvc)
    assert found == counted


def test_rows_that_the_host_has_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start ends, and says which option makes them fewer."""
    monkeypatch.setattr(memory, "start_error", ValueError)
    memory.refuse_beyond_memory(1000, 512, "--max-total-tokens")
    with pytest.raises(ValueError, match=r"free: lower --max-total-tokens"):
        memory.refuse_beyond_memory(1 << 30, 1 << 20, "--max-total-tokens")
