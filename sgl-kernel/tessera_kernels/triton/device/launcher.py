"""Launch our Triton kernels with little work on the host: a compilation is looked up by what can differ."""

from collections.abc import Callable
from typing import Any

import torch
from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver

_ALIGNMENT = 16
"""Bytes. Triton specializes a kernel on whether pointers and integers are multiples of it."""
_NO_HOOKS = (None, None, None)
"""Launch metadata, and the hooks before and after a launch."""
_NO_SCRATCH = (None, None)
"""A kernel's own, and a profiler's."""


def power_of_2(number: int) -> int:
    """The least power of two not below ``number`` (1 or more), ten times faster than ``triton.next_power_of_2``."""
    return 1 << (number - 1).bit_length()


class _Compilation:
    """A compiled kernel. It is launched as by ``CompiledKernel.__getitem__``, without launch hooks.

    A kernel without scratch memory, which is all of ours, is launched by the driver's function itself, without Triton's
    allocation of scratch memory.

    Args:
        kernel: Triton's ``CompiledKernel``.
    """

    def __init__(self, kernel: Any) -> None:
        run, self._in_one = kernel.run, False
        self._start: Callable[..., None] = run
        self._fixed: tuple[Any, ...] = (kernel.function, kernel.packed_metadata, *_NO_HOOKS)
        if isinstance(run, CudaLauncher) and not run.global_scratch_size and not run.profile_scratch_size:
            options = kernel.function, run.launch_cooperative_grid, run.launch_pdl
            self._start, self._in_one = run.launch, hasattr(run, "kernel_signature")
            if self._in_one:  # Triton 3.8 has one launcher for all kernels, which takes a kernel's arguments as a tuple
                types = run.arg_annotations, run.kernel_signature
                self._fixed = (*options, kernel.packed_metadata, *_NO_HOOKS, *_NO_SCRATCH, *types)
            else:
                self._fixed = (*options, *_NO_SCRATCH, kernel.packed_metadata, *_NO_HOOKS)

    def launch(self, grid: tuple[int, ...], stream: int, arguments: list[Any], constants: tuple[Any, ...]) -> None:
        """Launch the kernel.

        Args:
            grid: programs in three dimensions.
            stream: the CUDA stream's handle.
            arguments: pointers as integers, which spares a look-up by the driver, and numbers.
            constants: the values of the ``tl.constexpr``.
        """
        if self._in_one:
            self._start(*grid, stream, *self._fixed, (*arguments, *constants))
        else:
            self._start(*grid, stream, *self._fixed, *arguments, *constants)


class Launcher:
    """A decorator for a ``triton.jit`` kernel that looks up its compilations faster than Triton does.

    ``kernel[grid](...)`` examines every argument to find a compilation: 15 to 45 µs of the scheduler's thread for a
    dozen arguments. Here the key is what can differ for our kernels: dtypes, constants, warps, device. Pointers that
    are not aligned, and launches with a launch hook registered, are left to Triton.

    Args:
        kernel: the jitted function. Its parameters are tensors, then numbers, each in ``do_not_specialize`` (Triton
            would compile again for 1 and for multiples of 16), then constants.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compilations: dict[tuple[Any, ...], _Compilation] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        numbers: tuple[float, ...],
        constants: tuple[int, ...],
        num_warps: int = 4,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Launch the kernel on a stream.

        Args:
            grid: programs in three dimensions.
            tensors: the first on the current device, each other one there or in pinned memory.
            numbers: each always of the same type; integers below 2^31.
            constants: the values of the ``tl.constexpr``.
            num_warps: warps of each program.
            stream: None for the current stream. Entering another stream's context would cost as much as the launch.

        Raises:
            TypeError: the kernel is specialized on one of the numbers (raised at the first launch).
        """
        bits = 0
        arguments: list[float] = []
        for tensor in tensors:
            address = tensor.data_ptr()
            bits |= address
            arguments.append(address)
        aligned = bits % _ALIGNMENT == 0
        device = tensors[0].get_device()
        key = (num_warps, constants, device, *[tensor.dtype for tensor in tensors])
        compilation = self._compilations.get(key)
        hooked = knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls  # by a profiler
        if compilation is not None and aligned and not hooked:
            handle = driver.active.get_current_stream(device) if stream is None else stream.cuda_stream
            arguments += numbers
            compilation.launch(grid, handle, arguments, constants)
            return
        with torch.cuda.stream(stream):  # None changes nothing
            compiled = self._kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps)
        if compiled is not None and aligned:  # Triton's interpreter compiles nothing
            self._check(len(tensors), len(numbers))
            self._compilations[key] = _Compilation(compiled)

    def _check(self, tensors: int, numbers: int) -> None:
        for parameter in self._kernel.params[tensors : tensors + numbers]:
            if not parameter.do_not_specialize:
                raise TypeError(f"{self._kernel.__name__}: name {parameter.name} in do_not_specialize")
