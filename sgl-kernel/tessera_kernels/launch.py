"""Launch a Triton kernel that was compiled before, for a fraction of the host's time."""

from __future__ import annotations

from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

_ALIGNMENT = 16
"""Bytes; Triton compiles other loads for pointers that are not multiples of it."""


def power_of_2(number: int) -> int:
    """The least power of two from ``number`` up; Triton's own takes ten times as long."""
    return 1 << (number - 1).bit_length()


class Launcher:
    """A ``triton.jit`` kernel whose later launches look only at what may differ from the first.

    ``kernel[grid](...)`` examines each argument to find the compilation that it needs: 15 to 45 µs of the scheduler's
    thread for a dozen. What can differ is little: types, constants, and whether pointers are aligned. So compilations
    are kept here by these, and launched as ``CompiledKernel.__getitem__`` does, without what it prepares for profilers
    and with addresses, of which the driver need not be asked. Where a profiler listens, Triton launches.

    Args:
        kernel: the decorated function: first tensors, then numbers, each named in its ``do_not_specialize`` (Triton
            compiles others anew for 1 and for multiples of 16), then constants.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        numbers: tuple[float, ...],
        constants: tuple[int, ...],
        num_warps: int = 4,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Launch on a stream.

        Args:
            grid: programs.
            tensors: of one device, the current one.
            numbers: each always of the same type; integers below 2^31.
            constants: the values of the ``tl.constexpr``.
            num_warps: of each program.
            stream: None is the current one. To make another one the current one costs as much as a launch.

        Raises:
            TypeError: a number that the kernel is specialized for.
        """
        bits = 0
        addresses = [tensor.data_ptr() for tensor in tensors]
        for address in addresses:
            bits |= address
        aligned = bits % _ALIGNMENT == 0
        device = tensors[0].get_device()
        key = (num_warps, constants, device, *[tensor.dtype for tensor in tensors])
        compiled = self._compiled.get(key)
        hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        if compiled is not None and aligned and not (hooks[0].calls or hooks[1].calls):
            raw = driver.active.get_current_stream(device) if stream is None else stream.cuda_stream
            ready = raw, compiled.function, compiled.packed_metadata, None, None, None
            compiled.run(*grid, *ready, *addresses, *numbers, *constants)
            return
        with torch.cuda.stream(stream):  # None is none
            compiled = self._kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps)
        if compiled is not None and aligned:  # Triton's interpreter compiles nothing
            self._check(len(tensors), len(numbers))
            self._compiled[key] = compiled

    def _check(self, tensors: int, numbers: int) -> None:
        for parameter in self._kernel.params[tensors : tensors + numbers]:
            if not parameter.do_not_specialize:
                raise TypeError(f"{self._kernel.__name__}: name {parameter.name} in do_not_specialize")
