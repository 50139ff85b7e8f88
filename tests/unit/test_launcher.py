"""Launches by cached compilations, of our kernels and of others; compilations after the start are logged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver

from tessera_kernels.triton.device.launcher import Launcher, power_of_2
from tessera_patches.tilespec.start import late_compiles


class Jit:
    """Stands for a ``triton.jit`` function: says what is called, and with what."""

    __name__ = "kernel"

    def __init__(self, *, specialized: str = "", made: Any = None) -> None:
        self.made = made
        self.calls: list[tuple[str, Any, tuple[Any, ...]]] = []
        self.compilations = 0
        names = ("a", "b", "n", "SIZE")
        self.params = [SimpleNamespace(name=name, do_not_specialize=name != specialized) for name in names]

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launch(*arguments: Any, num_warps: int) -> Any:
            self.calls.append((f"jit {num_warps}", grid, arguments))
            self.compilations += 1
            return self.made or Compiled(self, f"compiled {self.compilations}")

        return launch


class Compiled:
    """Stands for a compilation: what `tests/contract/test_triton_launch.py` holds against Triton's own."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, jit: Jit, name: str) -> None:
        self.jit, self.name = jit, name

    def run(self, *arguments: Any) -> None:
        """As Triton's launcher is called."""
        grid, stream, ready, rest = arguments[:3], arguments[3], arguments[4:9], arguments[9:]
        assert ready == ("function", "metadata", None, None, None)
        self.jit.calls.append((f"{self.name} on {stream}", grid, rest))


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose current stream is 7; tensors of type bool are the host's."""
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_stream={2: 7}.__getitem__))
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: -1 if self.dtype == torch.bool else 2)


def test_what_differs_is_compiled_and_what_does_not_is_not() -> None:
    """Types, constants and warps differ; numbers, sizes and the grid do not."""
    jit = Jit()
    launch = Launcher(jit)
    ints, floats = torch.zeros(64, dtype=torch.int32), torch.zeros(64)
    launch((1, 1, 1), (ints, floats), (5,), (8,))
    launch((2, 3, 1), (ints, floats), (16,), (8,))
    launch((1, 1, 1), (ints, floats), (5,), (4,))
    launch((1, 1, 1), (floats, floats), (5,), (8,))
    launch((1, 1, 1), (ints, floats), (5,), (8,), num_warps=8)
    launch((1, 1, 1), (floats, floats), (1,), (8,))
    assert [what for what, _, _ in jit.calls] == [
        *("jit 4", "compiled 1 on 7", "jit 4", "jit 4", "jit 8", "compiled 3 on 7")
    ]
    _, grid, arguments = jit.calls[1]
    assert grid == (2, 3, 1)
    assert arguments == (ints.data_ptr(), floats.data_ptr(), 16, 8)


def test_pointers_that_are_not_aligned_are_left_to_triton() -> None:
    """It compiles loads for pointers that are multiples of 16, which would be wrong for others."""
    jit = Jit()
    launch = Launcher(jit)
    whole = torch.zeros(64)
    for first in (whole, whole[1:], whole, whole[4:], whole[1:]):
        launch((1, 1, 1), (first, whole), (5,), (8,))
    assert [what for what, _, _ in jit.calls] == [*("jit 4", "jit 4", "compiled 1 on 7", "compiled 1 on 7", "jit 4")]


def test_a_profiler_sees_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton tells its hooks of launches that it makes itself; another stream is a number of its own."""
    jit = Jit()
    launch, tensor = Launcher(jit), torch.zeros(64)

    def run(stream: Any = None) -> str:
        launch((1, 1, 1), (tensor, tensor), (5,), (8,), stream=stream)
        return jit.calls[-1][0]

    assert [run(), run(), run(SimpleNamespace(cuda_stream=3))] == ["jit 4", "compiled 1 on 7", "compiled 1 on 3"]
    for hook in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        with monkeypatch.context() as listening:
            listening.setattr(hook, "calls", [print])
            assert run() == "jit 4"


def test_a_number_that_triton_would_specialize_is_refused() -> None:
    """At the first launch, by name."""
    tensor = torch.zeros(4)
    with pytest.raises(TypeError, match="name n in do_not_specialize"):
        Launcher(Jit(specialized="n"))((1, 1, 1), (tensor, tensor), (5,), (8,))


def test_a_kernel_without_scratch_memory_is_launched_by_the_driver_itself() -> None:
    """Triton's function in between sees to scratch memory; with some it is called."""
    calls: list[tuple[Any, ...]] = []
    tensor = torch.zeros(64)
    for scratch in (0, 8):
        run = object.__new__(CudaLauncher)
        run.global_scratch_size, run.profile_scratch_size = scratch, 0
        run.launch_cooperative_grid, run.launch_pdl = False, True
        run.launch = lambda *arguments: calls.append(arguments)
        launch = Launcher(Jit(made=SimpleNamespace(run=run, function="function", packed_metadata="metadata")))
        launch((1, 1, 1), (tensor, tensor), (5,), (8,))
        if scratch:
            with pytest.raises(AttributeError, match="global_scratch_align"):  # of it Triton asks for memory
                launch((1, 1, 1), (tensor, tensor), (5,), (8,))
        else:
            launch((4, 1, 1), (tensor, tensor), (5,), (8,))
    how = "function", False, True, None, None, "metadata", None, None, None
    assert calls == [(4, 1, 1, 7, *how, tensor.data_ptr(), tensor.data_ptr(), 5, 8)]


def test_a_launcher_of_all_kernels_takes_arguments_as_a_tuple() -> None:
    """Triton 3.8's, with the types of this kernel's."""
    calls: list[tuple[Any, ...]] = []
    tensor = torch.zeros(64)
    run = object.__new__(CudaLauncher)
    run.global_scratch_size = run.profile_scratch_size = 0
    run.launch_cooperative_grid, run.launch_pdl = False, True
    run.arg_annotations, run.kernel_signature = ["types"], b"kinds"
    run.launch = lambda *arguments: calls.append(arguments)
    launch = Launcher(Jit(made=SimpleNamespace(run=run, function="function", packed_metadata="metadata")))
    for _ in range(2):
        launch((4, 1, 1), (tensor, tensor), (5,), (8,))
    how = "function", False, True, "metadata", *[None] * 5, ["types"], b"kinds"
    assert calls == [(4, 1, 1, 7, *how, (tensor.data_ptr(), tensor.data_ptr(), 5, 8))]


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_power_of_2(number: int, power: int) -> None:
    """From the number up."""
    assert power_of_2(number) == power


def test_a_compilation_after_the_start_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name and duration, after start only; who listened before still does."""
    warnings, before = [], []
    monkeypatch.setattr(late_compiles.logger, "warning", lambda text, *values: warnings.append(text % values))
    monkeypatch.setattr(knobs.compilation, "listener", lambda **compilation: before.append(compilation["cache_hit"]))
    late_compiles.warn()
    times = SimpleNamespace(total=103_400)
    for cache_hit in (False, True):
        knobs.compilation.listener(
            src=None, metadata={"name": "_kernel"}, metadata_group={}, times=times, cache_hit=cache_hit
        )
    assert before == [False, True]
    assert warnings == [
        "tessera: _kernel was compiled while requests waited: 103 ms",
        "tessera: _kernel was loaded from Triton's cache while requests waited: 103 ms",
    ]
