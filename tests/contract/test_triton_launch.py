"""What `tessera_kernels.triton.device.launcher` leaves out of Triton's way to a compiled kernel, and what it keeps."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

import torch
from triton import knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.driver import GPUDriver
from triton.backends.nvidia import driver
from triton.backends.nvidia.compiler import CUDABackend
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler import CompiledKernel
from triton.runtime.jit import KernelInterface

from tessera_kernels import triton
from tessera_kernels.triton.device.launcher import Launcher

IN_ONE = not hasattr(driver, "make_launcher")
"""Whether one launcher, of Triton 3.8, takes any kernel's arguments as a tuple."""


def test_a_compilation_is_launched_with_these() -> None:
    """Grid, stream, function, metadata, three things for profilers, arguments: in this order."""
    source = "".join(inspect.getsource(CompiledKernel.__getitem__).split())
    call = "self.run(grid[0],grid[1],grid[2],stream,self.function,self.packed_metadata,launch_metadata,"
    assert call + "knobs.runtime.launch_enter_hook,knobs.runtime.launch_exit_hook,*args)" in source
    parameters = list(inspect.signature(CudaLauncher.__call__).parameters)
    of_profilers = ["kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook"] if IN_ONE else []
    assert parameters == ["self", "gridX", "gridY", "gridZ", "stream", "function", *of_profilers, "args"]


def test_the_driver_launches_with_these() -> None:
    """What ``CudaLauncher`` adds: two numbers of its own, and scratch memory, none where its size is 0."""
    source = "".join(inspect.getsource(CudaLauncher.__call__).split())
    assert "ifsize>0:" in source
    assert "returnNone" in source
    call = "self.launch(gridX,gridY,gridZ,stream,function,self.launch_cooperative_grid,self.launch_pdl,"
    if IN_ONE:
        packed = "kernel_metadata,launch_metadata,launch_enter_hook,launch_exit_hook,global_scratch,profile_scratch,"
        assert call + packed + "self.arg_annotations,self.kernel_signature,kernel_args)" in source
        assert 'self.gsan_enabled="gsan"in' in "".join(inspect.getsource(CudaLauncher.__init__).split())
    else:
        assert source.count("allocate_scratch(self.") == 2
        assert source.endswith(call + "global_scratch,profile_scratch,*args)")


def test_triton_specializes_on_no_more_than_our_keys_have() -> None:
    """Numbers of 32 bits: 1, multiples of 16. Pointers: multiples of 16. And calls go through ``run``."""

    def compiled_for(argument: object) -> tuple[str, str | None]:
        found: tuple[str, str | None] = native_specialize_impl(CUDABackend, argument, False, True, True)
        return found

    assert compiled_for(2) == compiled_for(-(2**31) + 1) == compiled_for(2**31 - 1)
    assert compiled_for(0) == compiled_for(16) == compiled_for(-(2**31))
    whole = torch.zeros(64)
    assert compiled_for(whole) == compiled_for(whole[4:]) != compiled_for(whole[1:]) == compiled_for(whole[2:])
    assert "self.run(grid=grid,warmup=False,*args,**kwargs)" in "".join(inspect.getsource(KernelInterface).split())


def test_an_address_is_as_good_as_a_tensor() -> None:
    """Triton's launcher takes whole numbers for pointers, and None for hooks and their metadata."""
    if IN_ONE:
        source = Path(str(driver.__file__)).with_name("driver.c").read_text()
        assert "if (PyLong_Check(obj)) {\n    *dev_ptr = PyLong_AsUnsignedLongLong(obj);" in source
        assert "if (hook != Py_None)" in source
        return
    source = driver.make_launcher({}, {0: "*fp32"}, None)
    assert "if (PyLong_Check(obj)) {\n    ptr_info.dev_ptr = PyLong_AsUnsignedLongLong(obj);" in source
    assert "if (launch_enter_hook != Py_None)" in source
    assert "if(launch_exit_hook != Py_None)" in source


def test_hooks_have_lists() -> None:
    """Empty without a profiler."""
    for hook in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        assert hook.calls == []


def test_the_driver_knows_the_current_stream() -> None:
    """By the number of its device."""
    source = inspect.getsource(GPUDriver.__init__)
    assert "self.get_current_stream = _cuda_getCurrentRawStream" in source


def test_every_kernel_has_a_launcher() -> None:
    """Triton's own search takes 15 to 45 µs of the scheduler's thread; two kernels once had none."""
    names = [module.name for module in pkgutil.walk_packages(triton.__path__, "tessera_kernels.triton.")]
    modules = [importlib.import_module(name) for name in names]
    kernels = [kernel for module in modules for name, kernel in vars(module).items() if name.endswith("_kernel")]
    assert len(kernels) >= 15
    assert all(isinstance(kernel, Launcher) for kernel in kernels)
