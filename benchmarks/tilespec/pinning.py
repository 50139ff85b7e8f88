"""Give the scheduler threads of servers that take turns one processor, and all else that they run the others.

A thread that the kernel moves finds its caches empty: waves of the same server differed by 0.4 ms a step.
"""

import os
from collections.abc import Iterable

import psutil

_SCHEDULER = "sglang::schedul"
"""How SGLang names the process, by the 15 letters that the kernel keeps."""


def pin_schedulers(servers: Iterable[int]) -> None:
    """Of servers by their processes; where there are less than four processors nothing is done.

    Raises:
        RuntimeError: a server has no scheduler.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 4:
        return
    own, others = {allowed[1]}, set(allowed) - {allowed[1]}  # the first one tends to serve interrupts
    os.sched_setaffinity(0, others)
    for server in servers:
        processes = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
        schedulers = [process.pid for process in processes if process.name().startswith(_SCHEDULER)]
        if not schedulers:
            raise RuntimeError(f"no scheduler among the processes of {server}")
        for process in processes:
            for thread in process.threads():
                os.sched_setaffinity(thread.id, own if thread.id in schedulers else others)
