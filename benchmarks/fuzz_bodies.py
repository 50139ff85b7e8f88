"""Hostile bodies to every route that takes one, good requests beside and after each few: make fuzz BODIES=50000.

Writes one record for each route to ``--out``, after one that says which server it was. A server that ends is started
again, and the campaign goes on. Ends with 1, and with what was sent, where an answer has a status of 500 or above,
lacks what was asked for, or did not arrive, or where a server ended.
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

from hostile.campaign import Report, ServerFailedError, fuzz
from provenance import provenance
from tessera.launching.server import Server
from tessera_testing.drafts import chain, drafting
from tessera_testing.tiny import TINY

GRAMMARS = ("--grammar-backend", "llguidance")  # SGLang's default ends a server without a GPU
SMALL = ("--context-length", "256", *GRAMMARS)
SERVERS = {
    "everything": (*SMALL, "--toploc-verification", "--enable-injection"),
    "tilespec": (*SMALL, "--toploc-verification", "--enable-injection", "--tile-spec", *drafting("EAGLE", chain(3))),
    "rows": (*SMALL, "--enable-return-hidden-states"),
}
"""What is on, and the options for it."""
MOST_ENDS = 20
"""So many servers may end; the campaign stops then."""
SHOWN = 1500
"""Characters of each body that is told."""


def main() -> int:
    """Run one campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", choices=SERVERS, default="everything")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for the log of each server that ended")
    options = parser.parse_args()
    begin, origin, report = time.monotonic(), provenance(), Report()
    while report.bodies < options.bodies and len(report.ended) < MOST_ENDS:
        _serve(options, report)
    run = {"server": options.server, "seed": options.seed, "bodies": report.bodies, "ended": len(report.ended)}
    records = [{**origin, **run, "seconds": round(time.monotonic() - begin)}, *report.lines()]
    if options.out is not None:
        options.out.write_text("".join(json.dumps(record) + "\n" for record in records))
    write_report(records, report)
    return 0 if report.clean else 1


def _serve(options: argparse.Namespace, report: Report) -> None:
    """One server, until all bodies were sent or it ends."""
    ends = len(report.ended)
    with Server(TINY, *SERVERS[options.server], progress=say) as server:
        try:
            left = options.bodies - report.bodies
            asyncio.run(fuzz(server.url, options.seed + ends, left, say=say, report=report))
        except ServerFailedError as error:
            say(f"the server failed: {error}")
    if len(report.ended) > ends and options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
        (options.logs / f"{options.server}-{options.seed}-{ends}.log").write_text(server.log)


def write_report(records: list[dict[str, Any]], report: Report) -> None:
    """Print the records and what is wrong."""
    for record in records:
        say(json.dumps(record))
    for route, body, answer in report.faults:
        say(f"fault: {route} {body[:SHOWN]} -> {answer}")
    for route, body, missing in report.silent:
        say(f"silent: {route} {body[:SHOWN]} -> 200 without {missing}")
    for what, batch in report.ended:
        say(f"ended: {what}, while there were under way:")
        for one in batch:
            say(f"  {one.path} {one.content.decode(errors='replace')[:SHOWN]}")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + os.linesep)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
