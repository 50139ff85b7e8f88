"""When a server is gone: with its last thread, not with its first."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from tessera.launching.processes import ProcessFamily
from tessera_testing.waiting import wait_until

EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]
"""The number of exit(2), which ends one thread."""
PROGRAM = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1,)).start()
ctypes.CDLL(None).syscall({EXIT}, 0)
"""


def test_a_main_thread_that_ends_first() -> None:
    """It is a zombie at once; what the process has open stays open until the other thread ends."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True) as process:
        family = ProcessFamily(process.pid)
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().split(") ")[1][0] == "Z")
        assert family.refresh() == {process.pid}
        assert family.wait_gone(20)
