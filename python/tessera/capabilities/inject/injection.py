"""One prompt's injection, resolved: positions, vectors, cache keys. And the text in which it rides to the scheduler."""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

_HEADER = struct.Struct("<III4x")  # 16 bytes: what follows is aligned for every dtype
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ADD, MATCHED = 1, 2

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]


def concatenate(vectors: Sequence[torch.Tensor], *, pin_memory: bool = False) -> torch.Tensor:
    """All rows in one new tensor, of their dtype, or of float32 where they have several.

    By NumPy: torch would wake all its threads for some KiB.
    """
    widest = torch.float32 if len({own.dtype for own in vectors}) > 1 else vectors[0].dtype
    found = torch.empty(sum(map(len, vectors)), vectors[0].shape[1], dtype=widest, pin_memory=pin_memory)
    np.concatenate([own.to(widest).view(torch.uint8).numpy() for own in vectors], out=found.view(torch.uint8).numpy())
    return found


@dataclass(frozen=True, slots=True, repr=False)
class Injection:
    """What is put where, by ascending position.

    Attributes:
        positions: ``[n]``, absolute, each once.
        keys: ``[n]``, what stands for the token in the prefix cache (`tessera.capabilities.inject.keys`).
        flags: ``[n]``, `ADD` and `MATCHED` of each row.
        vectors: ``[n, H]`` on the host.
    """

    positions: Ints
    keys: Ints
    flags: Flags
    vectors: torch.Tensor

    def to_wire(self) -> str:
        """Base64, for SGLang's ``custom_params`` carry text in every IPC mode, and bytes in none but pickle."""
        rows, width = self.vectors.shape
        parts = (
            _HEADER.pack(rows, width, _DTYPES.index(self.vectors.dtype)),
            self.vectors.contiguous().view(torch.uint8).numpy().data,
            self.positions.astype("<i8").data,
            self.keys.astype("<i8").data,
            self.flags.data,
        )
        return base64.b64encode(b"".join(parts)).decode()

    @classmethod
    def from_wire(cls, wire: str) -> Self:
        """Inverse of `to_wire`; for what our own main process wrote. Copies nothing large: it runs in the scheduler."""
        content = bytearray(base64.b64decode(wire))
        rows, width, dtype = _HEADER.unpack_from(content)
        vectors = torch.frombuffer(content, dtype=_DTYPES[dtype], count=rows * width, offset=_HEADER.size)
        behind = _HEADER.size + rows * width * _DTYPES[dtype].itemsize
        return cls(
            np.frombuffer(content, "<i8", rows, behind).astype(np.int64),
            np.frombuffer(content, "<i8", rows, behind + 8 * rows).astype(np.int64),
            np.frombuffer(content, np.uint8, rows, behind + 16 * rows),
            vectors.reshape(rows, width),
        )
