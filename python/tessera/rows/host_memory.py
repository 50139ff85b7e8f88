"""Memory of the host that the GPU reads and writes."""

import mmap
from typing import Any

import torch


def allocate(rows: int, hidden_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows ``[rows, H]`` of NaN, in whole pages of their own, as CUDA registers them."""
    memory = mmap.mmap(-1, rows * hidden_size * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(rows, hidden_size).fill_(float("nan"))


def register(rows: torch.Tensor) -> None:
    """Have the GPU access rows of `allocate`. Torch's own pinned memory would take the next power of two."""
    failed = int(torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), rows.nbytes, 0))
    if failed:
        raise RuntimeError(f"CUDA cannot register {rows.nbytes} bytes of the host's memory (error {failed})")


def seen_by(device: torch.device | str, rows: torch.Tensor) -> torch.Tensor:
    """The memory of ``rows`` as a tensor of a GPU, for which it is registered; on the CPU, ``rows`` themselves."""
    if torch.device(device).type != "cuda":
        return rows
    register(rows)
    with torch.cuda.device(device):
        return torch.as_tensor(_Bytes(rows), device=device).view(rows.dtype).view(rows.shape)


class _Bytes:
    """What lies at an address, in the protocol by which torch takes over a GPU's memory. Keeps the rows alive."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows
        # An address of registered memory is the same on the GPU (CUDA's unified addressing).
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (rows.nbytes,),
            "typestr": "|u1",
            "data": (rows.data_ptr(), False),
            "version": 2,
        }
