"""The Triton kernel of `tessera_kernels.ops.rows.copy_rows`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.triton.device.launcher import Launcher

COLUMNS = 1024
"""Of a program: 16 bytes of each thread in bfloat16, and packets as large as PCIe takes."""
WARPS = 4


@Launcher
@triton.jit  # type: ignore[untyped-decorator]
def _copy_kernel(  # type: ignore[no-untyped-def]
    target_places,
    source_places,
    target,
    source,
    HIDDEN_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (i, c) copies columns ``c * COLUMNS ..`` of row i."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < HIDDEN_SIZE
    to = tl.load(target_places + tl.program_id(0)).to(tl.int64) * HIDDEN_SIZE
    of = tl.load(source_places + tl.program_id(0)).to(tl.int64) * HIDDEN_SIZE
    tl.store(target + to + columns, tl.load(source + of + columns, mask=inside), mask=inside)


def copy_rows_triton(places: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor, source: torch.Tensor) -> None:
    """See `tessera_kernels.ops.rows.copy_rows`. One launch and no copies."""
    hidden_size = target.shape[1]
    if len(places[0]):
        _copy_kernel(
            (len(places[0]), -(-hidden_size // COLUMNS), 1),
            (*places, target, source),
            (),
            (hidden_size, COLUMNS),
            num_warps=WARPS,
        )
