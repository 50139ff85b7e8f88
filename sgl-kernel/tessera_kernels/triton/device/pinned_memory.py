"""Pinned host memory for the arguments and the output of one launch, which the kernel accesses without copies.

Launching a copy costs the host as much as launching the kernel, and a launch moves only a few bytes in and a few KiB
out for each request.
"""

from collections.abc import Sequence

import torch


def table_and_output(
    table: Sequence[Sequence[int]], output_bytes: int, *, pin_memory: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate a table and an output in one piece of memory. Keep the output until the kernel has run.

    Args:
        table: ``n`` rows of equal length.
        output_bytes: size of each output row, a multiple of 8.
        pin_memory: whether a GPU accesses it.

    Returns:
        The table, int64 ``[n, columns]``, and the output, uint8 ``[n, output_bytes]``, not initialized.
    """
    count, columns = len(table), len(table[0])
    numbers = count * columns
    begin = numbers + numbers % 2  # a multiple of 16 bytes: see `tessera_kernels.triton.device.launcher.Launcher`
    memory = torch.empty(begin + count * output_bytes // 8, dtype=torch.int64, pin_memory=pin_memory)
    head = memory[:numbers].view(count, columns)
    head.numpy()[:] = table
    return head, memory[begin:].view(torch.uint8).view(count, output_bytes)
