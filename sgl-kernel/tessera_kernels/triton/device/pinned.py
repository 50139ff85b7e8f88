"""What a kernel reads from the host and writes to it: one piece of pinned memory, and no copies.

To launch a copy costs the host as much as the kernel; some bytes in and some KiB out of each request are nothing to
the bus.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def table_and_output(
    table: Sequence[Sequence[int]], output_bytes: int, *, pin_memory: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for a launch. Who keeps the output keeps the table; keep it until the kernel has run.

    Args:
        table: ``n`` equally long rows of integers.
        output_bytes: room for the output of each, a multiple of 8.
        pin_memory: whether a GPU is to reach it.

    Returns:
        The table, ``[n, columns]`` int64, and room for the output, ``[n, output_bytes]`` uint8, not initialized.
    """
    count, columns = len(table), len(table[0])
    numbers = count * columns
    begin = numbers + numbers % 2  # a multiple of 16 bytes: see `tessera_kernels.triton.device.launch.Launcher`
    memory = torch.empty(begin + count * output_bytes // 8, dtype=torch.int64, pin_memory=pin_memory)
    head = memory[:numbers].view(count, columns)
    head.numpy()[:] = table
    return head, memory[begin:].view(torch.uint8).view(count, output_bytes)
