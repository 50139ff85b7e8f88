"""The training log: one JSON object a line."""

import json
from pathlib import Path
from typing import Any


class Journal:
    """Appends records to a JSONL file; numbers are cut to six figures."""

    def __init__(self, path: Path, every: int) -> None:
        """Start `path` anew; the loop writes a loss line every `every` steps."""
        self.every = every
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")

    def write(self, kind: str, **fields: object) -> None:
        """Append one record of this kind."""
        short = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in fields.items()}
        line = json.dumps({"kind": kind, **short}, ensure_ascii=False)
        with self._path.open("a", encoding="utf-8") as log:
            log.write(line + "\n")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All records of a log, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
