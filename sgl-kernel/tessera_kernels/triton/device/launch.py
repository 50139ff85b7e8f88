"""Launch a Triton kernel that was compiled before, for a fraction of the host's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import JITFunction, driver

_ALIGNMENT = 16
"""Bytes; Triton compiles other loads for pointers that are not multiples of it, and for numbers that are."""
_INT32 = range(-(2**31), 2**31)
_NOBODY = (None, None, None)
"""Listens to a launch: two hooks, and what they are told."""


def power_of_2(number: int) -> int:
    """The least power of two from ``number`` up; Triton's own takes ten times as long."""
    return 1 << (number - 1).bit_length()


class _Compiled:
    """A compilation, and how it is launched: as ``CompiledKernel.__getitem__`` does, but nobody else is told.

    A kernel that needs no scratch memory, and none of ours does, is launched without Triton's function that sees to it.
    """

    def __init__(self, kernel: Any) -> None:
        run = kernel.run
        self._start: Callable[..., None] = run
        self._ready: tuple[Any, ...] = (kernel.function, kernel.packed_metadata, *_NOBODY)
        if isinstance(run, CudaLauncher) and not run.global_scratch_size and not run.profile_scratch_size:
            how = run.launch_cooperative_grid, run.launch_pdl, None, None
            self._start, self._ready = run.launch, (kernel.function, *how, kernel.packed_metadata, *_NOBODY)

    def launch(self, grid: tuple[int, ...], stream: int, arguments: list[Any], constants: tuple[Any, ...]) -> None:
        """With addresses in the place of tensors, of which the driver need not be asked; three numbers of programs."""
        self._start(*grid, stream, *self._ready, *arguments, *constants)


def _nobody_listens() -> bool:
    """Whether a launch may be one that Triton tells no profiler of."""
    return not (knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls)


class Launcher:
    """A ``triton.jit`` kernel whose later launches look only at what may differ from the first.

    ``kernel[grid](...)`` examines each argument to find the compilation that it needs: 15 to 45 µs of the scheduler's
    thread for a dozen. What can differ is little: types, constants, and whether pointers are aligned. So compilations
    are kept here by these. Where a profiler listens, Triton launches.

    Args:
        kernel: the decorated function: first tensors, then numbers, each named in its ``do_not_specialize`` (Triton
            compiles others anew for 1 and for multiples of 16), then constants.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[Any, ...], _Compiled] = {}

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
        arguments: list[float] = []
        for tensor in tensors:
            address = tensor.data_ptr()
            bits |= address
            arguments.append(address)
        aligned = bits % _ALIGNMENT == 0
        device = tensors[0].get_device()
        key = (num_warps, constants, device, *[tensor.dtype for tensor in tensors])
        known = self._compiled.get(key)
        if known is not None and aligned and _nobody_listens():
            raw = driver.active.get_current_stream(device) if stream is None else stream.cuda_stream
            arguments += numbers
            known.launch(grid, raw, arguments, constants)
            return
        with torch.cuda.stream(stream):  # None is none
            compiled = self._kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps)
        if compiled is not None and aligned:  # Triton's interpreter compiles nothing
            self._check(len(tensors), len(numbers))
            self._compiled[key] = _Compiled(compiled)

    def _check(self, tensors: int, numbers: int) -> None:
        for parameter in self._kernel.params[tensors : tensors + numbers]:
            if not parameter.do_not_specialize:
                raise TypeError(f"{self._kernel.__name__}: name {parameter.name} in do_not_specialize")


def hasten(kernel: Any) -> None:
    """Have somebody else's ``triton.jit`` kernel launched in this way too, wherever it is called (in place).

    Its numbers may be specialized, so they are looked at as Triton does. What is not known here goes to Triton:
    arguments of other types than tensors, numbers of 32 bits and None, or by name where they are no constants. In
    Triton's interpreter nothing changes.
    """
    if isinstance(kernel, JITFunction) and not isinstance(getattr(kernel.run, "__self__", None), _Hastened):
        kernel.run = _Hastened(kernel).run


class _Hastened:
    """Stands where a kernel's ``run`` was."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._search = kernel, kernel.run
        self._constant = [parameter.is_constexpr for parameter in kernel.params]
        self._compiled: dict[tuple[Any, ...], tuple[_Compiled, tuple[Any, ...]]] = {}

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        """What ``JITFunction.run`` does; returns None where a compilation is launched that is known."""
        looked_at = self._look_at(arguments)
        if looked_at is None:
            return self._search(*arguments, grid=grid, warmup=warmup, **named)
        device, kinds, values = looked_at
        key = (device, *kinds, *named.items())
        known = self._compiled.get(key)
        if known is not None and not warmup and type(grid) is tuple and _nobody_listens():
            compiled, constants = known
            compiled.launch((*grid, 1, 1)[:3], driver.active.get_current_stream(device), values, constants)
            return None
        found = self._search(*arguments, grid=grid, warmup=warmup, **named)
        complete = all(self._constant[len(arguments) :])
        if found is not None and device >= 0 and complete and not self._kernel.pre_run_hooks:
            left = self._kernel.params[len(arguments) :]
            constants = tuple(named.get(parameter.name, parameter.default) for parameter in left)
            self._compiled[key] = _Compiled(found), constants
        return found

    def _look_at(self, arguments: tuple[Any, ...]) -> tuple[int, list[Any], list[Any]] | None:
        """Which GPU, what Triton compiles for, and addresses and numbers; None where it is to look itself."""
        device = -1  # the host, which pinned tensors are on
        kinds: list[Any] = []
        values: list[Any] = []
        for argument, constant in zip(arguments, self._constant, strict=False):
            kind = type(argument)
            if kind is torch.Tensor:
                address, device = argument.data_ptr(), max(device, argument.get_device())
                kinds.append((argument.dtype, address % _ALIGNMENT == 0))
                values.append(address)
                continue
            if kind is int and not constant and argument in _INT32:
                kinds.append((argument == 1, argument % _ALIGNMENT == 0))
            elif constant or argument is None:
                kinds.append((kind, argument))
            else:
                return None
            values.append(argument)
        return device, kinds, values
