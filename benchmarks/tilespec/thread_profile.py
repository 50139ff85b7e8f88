"""Where the scheduler's thread spends a decode step: cProfile around its launch, and around processing its results.

Times are the thread's, so waiting asleep is none; a loop that waits for the GPU is. A profiled step takes about twice
as long, calls of Python most of all: it shows where to look, and `progress.py` measures what that is worth.

`register` is a plugin of SGLang's (`plugins.py`).
"""

import cProfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tilespec.plugins import command_environment, next_command, path_of, send_command

PROFILED = "TILESPEC_THREAD_PROFILE"
_WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


class Wanted(NamedTuple):
    """What is to be profiled."""

    bs: int
    steps: int
    out: str
    """The file to be written, for `pstats`."""


def profiling(path: Path) -> dict[str, str]:
    """Profile nothing so far; return what the server needs in its environment."""
    return command_environment(PROFILED, path)


def profile(path: Path, wanted: Wanted) -> None:
    """From the next prefill on, once."""
    send_command(path, wanted)


def register() -> None:
    """Hook the worker, in a scheduler's process."""
    path = path_of(PROFILED)
    if path is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    steps = Steps(path)
    HookRegistry.register(f"{_WORKER}.forward_batch_generation", steps.launch, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.process_batch_result", steps.process, HookType.AROUND)


class Steps:
    """Around a worker and what is done with its results; looks for what is wanted between decode steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wanted: Wanted | None = None
        self._profiler = cProfile.Profile(time.thread_time)
        self._left = 0

    def launch(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a batch, profiled if it is one of those."""
        if not batch.forward_mode.is_decode():
            self._read()
        if not self._profiled(batch):
            return original(worker, batch, *args, **kwargs)
        answer = self._profiler.runcall(original, worker, batch, *args, **kwargs)
        self._left -= 1
        if self._wanted is not None and not self._left:
            self._profiler.dump_stats(self._wanted.out)
            self._wanted = None
        return answer

    def process(self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
        """Process the results of a batch, profiled if it is one of those."""
        if not self._profiled(batch):
            return original(scheduler, batch, result)
        return self._profiler.runcall(original, scheduler, batch, result)

    def _profiled(self, batch: Any) -> bool:
        wanted = self._wanted
        return wanted is not None and batch.forward_mode.is_decode() and len(batch.reqs) == wanted.bs

    def _read(self) -> None:
        wanted = next_command(self._path)
        if wanted is not None:
            self._wanted = Wanted(*wanted)
            self._profiler, self._left = cProfile.Profile(time.thread_time), self._wanted.steps
