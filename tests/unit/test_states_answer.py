"""From the bytes of raw rows to the field ``hidden_states``."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from safetensors.torch import load

from tessera.capabilities.states.answer import answer
from tessera.capabilities.states.options import Format, StateOptions
from tessera.rows.reads import Over

ROWS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def raw(dtype: torch.dtype) -> tuple[bytes, str, torch.Tensor]:
    """The rows as they come, the name of their dtype, and their values."""
    rows = ROWS.to(dtype)
    return rows.view(torch.uint8).numpy().tobytes(), str(dtype).removeprefix("torch."), rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_format_holds_the_same_numbers(dtype: torch.dtype) -> None:
    """Bit by bit, in the model's own dtype; as numbers in JSON."""
    content, name, rows = raw(dtype)
    listed = answer(content, name, (5, 4), StateOptions(over=Over.OUTPUT), 0)
    np.testing.assert_array_equal(listed, rows.float().numpy())
    encoded = answer(content, name, (5, 4), StateOptions(format=Format.BASE64), 0)
    assert base64.b64decode(encoded["data"]) == content
    assert (encoded["dtype"], encoded["shape"]) == (name, (5, 4))
    filed = answer(content, name, (5, 4), StateOptions(format=Format.SAFETENSORS), 0)
    assert torch.equal(load(base64.b64decode(filed["data"]))["hidden_states"], rows)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_no_rows(dtype: str) -> None:
    """Of the output, where at most one token was generated: an empty list, no bytes, an empty tensor."""
    assert np.shape(answer(b"", dtype, (0, 4), StateOptions(over=Over.OUTPUT), 3)) == (0, 4)
    assert answer(b"", dtype, (0, 4), StateOptions(over=Over.OUTPUT, format=Format.BASE64), 3)["data"] == ""
    filed = answer(b"", dtype, (0, 4), StateOptions(over=Over.OUTPUT, format=Format.SAFETENSORS), 3)
    assert load(base64.b64decode(filed["data"]))["hidden_states"].shape == (0, 4)


def test_the_list_has_sglangs_shape() -> None:
    """The prompt's rows as one list, then each generated row; ``last`` is one flat list."""
    content, name, rows = raw(torch.float32)
    listed = answer(content, name, (5, 4), StateOptions(), 3)
    assert [np.shape(part) for part in listed] == [(3, 4), (4,), (4,)]
    np.testing.assert_array_equal(np.vstack(listed), rows.numpy())
    assert np.shape(answer(content[:16], name, (1, 4), StateOptions(last=True), 3)) == (4,)
