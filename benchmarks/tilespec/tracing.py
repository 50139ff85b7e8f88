"""Have a server trace some of its steps while it decodes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tilespec.decode import Decoding, Place, decode

STEPS = 20
_SECONDS = 60.0


def trace(
    place: Place,
    load: Decoding,
    prompts: Iterator[list[int]],
    folder: Path,
    prefill_seconds: float,
    activities: tuple[str, ...],
) -> Path:
    """Trace `STEPS` steps in the midst of what is decoded.

    Args:
        place: the server.
        load: longer than what is traced.
        prompts: of its requests.
        folder: where the server writes, not there yet or empty.
        prefill_seconds: until a wave decodes.
        activities: "GPU", "CPU" or both; the host is slower where it is traced.

    Raises:
        RuntimeError: the wave failed.
        TimeoutError: the server wrote no trace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as thread:
        wave = thread.submit(decode, place, load, prompts)
        time.sleep(prefill_seconds)
        body = {"output_dir": str(folder), "num_steps": STEPS, "activities": activities}
        httpx.post(f"{place.url}/start_profile", json=body, timeout=_SECONDS).raise_for_status()
        wave.result()
    until = time.monotonic() + _SECONDS
    while not (written := list(folder.glob("*.trace.json.gz"))):
        if time.monotonic() > until:
            raise TimeoutError(f"{place.url} wrote no trace in {_SECONDS:.0f} s")
        time.sleep(0.2)
    time.sleep(1.0)  # it may still be writing
    return written[0]
