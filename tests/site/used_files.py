"""Which of our files run in a process, while a request of some kind is on its way.

A test writes the kind into ``label`` in the folder that TESSERA_TEST_FILES names, and each process answers with
``PID-LABEL`` once it counts for it. When the label changes, the files counted for the one before lie in that answer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType
from typing import Any

_ROOT = f"{Path(__file__).parents[2]}{os.sep}"
_OURS = tuple(f"{_ROOT}{name}{os.sep}" for name in ("python", "patches", "sgl-kernel"))
_POLL_SECONDS = 0.05


def count_files() -> None:
    """Begin, in this process."""
    monitoring: Any = vars(sys)["monitoring"]  # from Python 3.12 on
    folder = Path(os.environ["TESSERA_TEST_FILES"])
    used: set[str] = set()

    def started(code: CodeType, _: int) -> object:
        if not code.co_filename.startswith(_OURS):
            return monitoring.DISABLE
        used.add(code.co_filename.removeprefix(_ROOT))
        return None

    def follow() -> None:
        now = ""
        while True:  # until the process ends: the thread is a daemon, and the test stops its server
            time.sleep(_POLL_SECONDS)
            label = _read(folder / "label")
            if label == now:
                continue
            if now:
                (folder / f"{os.getpid()}-{now}").write_text("\n".join(sorted(used)))
            used.clear()
            now = label
            (folder / f"{os.getpid()}-{now}").touch()

    monitoring.use_tool_id(monitoring.PROFILER_ID, "tessera tests")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, started)
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
    threading.Thread(target=follow, daemon=True).start()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
