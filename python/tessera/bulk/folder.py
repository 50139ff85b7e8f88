"""The output folder: it belongs to one run, which may be begun again, and to one process at a time."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tessera.bulk.job import UNFINISHED, alike

ABOUT = "run.json"


@contextmanager
def claim_folder(output: Path, about: dict[str, Any]) -> Iterator[None]:
    """Keep the folder while the run lasts. What a killed run left unfinished is removed.

    Args:
        output: the folder, made if it is not there.
        about: what must be equal when a run goes on; ``probe`` may differ a little.

    Raises:
        ValueError: another process writes there, or the folder has files of something else.
    """
    output.mkdir(parents=True, exist_ok=True)
    lock = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file = output / ABOUT
        if file.exists():
            _compare(output, json.loads(file.read_text()), about)
        elif any(output.glob("*.parquet")):
            raise ValueError(f"--output {output} has Parquet files of something else; give an empty folder")
        for path in output.glob(f"*{UNFINISHED}"):
            path.unlink()
        new = output / f"{ABOUT}{UNFINISHED}"
        new.write_text(json.dumps(about) + "\n")
        new.replace(file)
        yield
    except BlockingIOError as error:
        raise ValueError(f"another tessera encode writes to --output {output}") from error
    finally:
        os.close(lock)


def _compare(output: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in now.items():
        if name != "probe" and before[name] != value:
            raise ValueError(
                f"--output {output} was begun with {name} {before[name]}, not {value}; give another folder"
            )
    if not alike(np.array(before["probe"]), np.array(now["probe"])):
        raise ValueError(f"--output {output} was begun with another model; give another folder")
