"""From the bytes of raw rows, as they come from the scheduler, to the field ``hidden_states`` of the answer."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pybase64
import torch
from safetensors.torch import save

from tessera.capabilities.states.options import Format, StateOptions
from tessera.rows.reads import Frame, Over


def answer(rows: Frame, dtype: str, shape: tuple[int, int], options: StateOptions, prompt_tokens: int) -> Any:
    """What ``hidden_states`` holds.

    Args:
        rows: ``[n, H]``, row by row.
        dtype: name of their dtype: bfloat16, float16 or float32.
        shape: ``(n, H)``.
        options: how to write them.
        prompt_tokens: N; in the list of all rows the prompt's come as one list, as SGLang has them.
    """
    if options.format is Format.BASE64:
        return {"data": pybase64.b64encode_as_string(rows), "dtype": dtype, "shape": shape, "format": "base64"}
    if options.format is Format.SAFETENSORS:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        if tensor.numel():  # torch refuses to read no bytes, and no rows are a result: those of an output of one token
            tensor = torch.frombuffer(bytearray(rows), dtype=tensor.dtype).reshape(shape)
        content = save({"hidden_states": tensor})
        return {"data": pybase64.b64encode_as_string(content), "dtype": dtype, "shape": shape, "format": "safetensors"}
    return _listed(_numbers(rows, dtype).reshape(shape), options, prompt_tokens)


def _listed(rows: npt.NDArray[np.float32], options: StateOptions, prompt_tokens: int) -> Any:
    if options.last:
        return rows[0]
    if options.positions is not None or options.over is Over.OUTPUT:
        return rows
    return [rows[:prompt_tokens], *rows[prompt_tokens:]]


def _numbers(rows: Frame, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(rows, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(rows, {"float16": "<f2", "float32": "<f4"}[dtype]).astype(np.float32)
