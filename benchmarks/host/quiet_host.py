"""Is this host quiet enough to measure on? Ends within 6 s; exit code 1 says no.

Serving a model is bound by the processor as much as by the GPU: small batches wait for the scheduler's next launch. On
a borrowed host whose processors others use too, the same load of the same server gave 28 to 65 requests/s. So this
comes first, and a host that fails it is given back. Eight processes repeat the same work of a fraction of a
millisecond, and the share of the processors' time that the hypervisor gave to others meanwhile decides. What they did
less than the typical repetition would allow is told as well: it was 20 % on hosts from which nothing was stolen, for
the processors of a virtual machine may share cores.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from processors import processor_time, stolen_since

PROCESSES, SECONDS = 8, 4.0
MOST_STOLEN = 0.01


def main() -> None:
    """Work, print one JSON line, judge."""
    before = processor_time()
    with ProcessPoolExecutor(PROCESSES) as pool:
        durations = list(pool.map(_work, [SECONDS] * PROCESSES))
    stolen = stolen_since(before)
    typical = statistics.median(each for own in durations for each in own)
    lost = [1 - len(own) * typical / SECONDS for own in durations]
    found = {
        "stolen": stolen,
        "lost_median": round(statistics.median(lost), 4),
        "lost_most": round(max(lost), 4),
        "work_microseconds": round(typical * 1e6, 1),
        "longest_milliseconds": round(max(map(max, durations)) * 1e3, 2),
    }
    quiet = found["stolen"] <= MOST_STOLEN
    print(json.dumps({"quiet": quiet, **found}), flush=True)
    sys.exit(not quiet)


def _work(seconds: float) -> list[float]:
    durations = []
    begin = now = time.perf_counter()
    while now < begin + seconds:
        sum(range(20_000))
        earlier, now = now, time.perf_counter()
        durations.append(now - earlier)
    return durations


if __name__ == "__main__":
    main()
