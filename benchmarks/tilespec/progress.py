"""How many tokens a server has made after each of its decode steps, and what a step costs its scheduler's thread.

A client sees lengths in events, of which a server that speculates sends one in eight steps if it is asked for one in
eight tokens, and an event for every step of 128 requests is more than a server's process for events can send. So the
scheduler notes the sum itself, a row for each step whose outcome it has processed: a few microseconds, the same for
all settings.

`register` is a plugin of SGLang's (`plugins.py`).
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilespec.plugins import path_of

PROGRESS = "TILESPEC_PROGRESS"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
ROW = np.dtype([("seconds", "<f8"), ("requests", "<i8"), ("tokens", "<i8"), ("launch", "<f8"), ("process", "<f8")])
"""When (`time.monotonic`, one clock for all processes), how many requests there were, and their tokens in all; and the
seconds of the scheduler's thread in which it launched the decode step after that, which it does first, and in which it
processed the outcome of this one, once that had come."""


def noting(path: Path) -> dict[str, str]:
    """Empty the file of rows; return what the server that is to write it needs in its environment."""
    path.write_bytes(b"")
    return {PROGRESS: str(path)}


class Progress:
    """Reads the rows of one server.

    Args:
        path: as in `noting`. Rows that are there already are passed over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size // ROW.itemsize * ROW.itemsize

    def receive(self) -> npt.NDArray[np.void]:
        """The rows since the last call, the oldest first."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        rows = np.frombuffer(content, ROW, count=len(content) // ROW.itemsize)
        self._read += rows.nbytes
        return rows


def register() -> None:
    """Hook the scheduler, in its process."""
    path = path_of(PROGRESS)
    if path is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    notes = _Notes(path)
    HookRegistry.register(f"{_SCHEDULER}.run_batch", notes.launch, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.process_batch_result", notes.process, HookType.AROUND)


class _Notes:
    """Around what the scheduler does for a step: its launch, and the processing of its outcome."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._launch = 0.0

    def launch(self, original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Time the thread, not the clock: what it waits for is no work."""
        decodes, began = batch.forward_mode.is_decode(), time.thread_time()
        result = original(scheduler, batch, *args, **kwargs)
        if decodes:
            self._launch = time.thread_time() - began
        return result

    def process(self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
        """Note a decode step. The wait for its outcome, in which the thread turns, is not a part of it."""
        decodes = batch.forward_mode.is_decode()
        if decodes and result.copy_done is not None:
            result.copy_done.synchronize()
        began = time.thread_time()
        answer = original(scheduler, batch, result)
        if decodes:
            process = time.thread_time() - began
            tokens = sum(len(request.output_ids) for request in batch.reqs)
            row = np.array([(time.monotonic(), len(batch.reqs), tokens, self._launch, process)], ROW)
            os.write(self._file, row.tobytes())
        return answer
