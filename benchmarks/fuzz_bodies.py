"""Hostile bodies to every route that takes one, with a good request after each few: make fuzz BODIES=50000.

Writes one record for each route to ``--out``, after one that says which server it was. Ends with 1 where an answer has
a status of 500 or above, and with what was sent where the server ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from provenance import provenance
from tessera.testing.drafts import chain, drafting
from tessera.testing.fuzzing import fuzz
from tessera.testing.server import Server
from tessera.testing.tiny import TINY

GRAMMARS = ("--grammar-backend", "llguidance")  # SGLang's default ends a server without a GPU
SMALL = ("--context-length", "256", *GRAMMARS)
SERVERS = {
    "everything": (*SMALL, "--toploc-verification", "--enable-injection"),
    "tilespec": (*SMALL, "--toploc-verification", "--enable-injection", "--tile-spec", *drafting("EAGLE", chain(3))),
    "rows": (*SMALL, "--enable-return-hidden-states"),
}
"""What is on, and the options for it."""


def main() -> int:
    """Run one campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", choices=SERVERS, default="everything")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    with Server(TINY, *SERVERS[options.server], progress=say) as server:
        report = asyncio.run(fuzz(server.url, options.seed, options.bodies, say=say))
        alive = server.exit_code is None
    run = {"server": options.server, "seed": options.seed, "bodies": options.bodies, "alive": alive}
    records = [{**provenance(), **run, "seconds": round(time.monotonic() - begin)}, *report.lines()]
    show(records)
    if options.out is not None:
        options.out.write_text("".join(json.dumps(record) + "\n" for record in records))
    for route, body, answer in report.faults:
        say(f"{route} {body[:1000]} -> {answer}")
    return 1 if report.faults or not alive else 0


def show(records: list[dict[str, Any]]) -> None:
    """Print them."""
    for record in records:
        say(json.dumps(record))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + os.linesep)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
