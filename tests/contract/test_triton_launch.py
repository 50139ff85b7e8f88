"""What `tessera_kernels.launch.Launcher` leaves out of Triton's way to a compiled kernel, and what it keeps."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from triton import knobs
from triton.backends.driver import GPUDriver
from triton.backends.nvidia.driver import CudaLauncher, make_launcher
from triton.compiler import CompiledKernel

import tessera_kernels
from tessera_kernels.launch import Launcher


def test_a_compilation_is_launched_with_these() -> None:
    """Grid, stream, function, metadata, three things for profilers, arguments: in this order."""
    source = "".join(inspect.getsource(CompiledKernel.__getitem__).split())
    call = "self.run(grid[0],grid[1],grid[2],stream,self.function,self.packed_metadata,launch_metadata,"
    assert call + "knobs.runtime.launch_enter_hook,knobs.runtime.launch_exit_hook,*args)" in source
    parameters = list(inspect.signature(CudaLauncher.__call__).parameters)
    assert parameters == ["self", "gridX", "gridY", "gridZ", "stream", "function", "args"]


def test_an_address_is_as_good_as_a_tensor() -> None:
    """Triton's generated launcher takes whole numbers for pointers, and None for hooks and their metadata."""
    source = make_launcher({}, {0: "*fp32"}, None)
    assert "if (PyLong_Check(obj)) {\n    ptr_info.dev_ptr = PyLong_AsUnsignedLongLong(obj);" in source
    assert "if (launch_enter_hook != Py_None)" in source
    assert "if(launch_exit_hook != Py_None)" in source


def test_hooks_have_lists() -> None:
    """Empty where nobody listens."""
    for hook in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        assert hook.calls == []


def test_the_driver_knows_the_current_stream() -> None:
    """By the number of its device."""
    source = inspect.getsource(GPUDriver.__init__)
    assert "self.get_current_stream = _cuda_getCurrentRawStream" in source


def test_every_kernel_has_a_launcher() -> None:
    """Triton's own search takes 15 to 45 µs of the scheduler's thread; two kernels had none, and nobody saw it."""
    names = [
        module.name for module in pkgutil.iter_modules(tessera_kernels.__path__) if module.name.endswith("_triton")
    ]
    modules = [importlib.import_module(f"tessera_kernels.{name}") for name in names]
    kernels = [kernel for module in modules for name, kernel in vars(module).items() if name.endswith("_kernel")]
    assert len(kernels) >= 20
    assert all(isinstance(kernel, Launcher) for kernel in kernels)
