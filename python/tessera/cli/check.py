"""``tessera check URL``: does a server give what a prover needs, and is it right? One line for each question."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from tessera.cli.connection import add_api_key
from tessera.installing import install

if TYPE_CHECKING:
    from tessera.client.check import Check

LOCAL = "http://127.0.0.1:30000"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check",
        help="ask a running server for all that the client uses, and compare",
        description="Send a few small requests to a running server and check what comes back: token, hidden states and "
        "their shape, cold and from the cache, embeddings and their norm, candidates and log-probabilities. "
        "Exit status 0 if all is right, 1 if not.",
    )
    parser.add_argument(
        "url", nargs="?", default=os.environ.get("SGLANG_URL", LOCAL), help=f"default: $SGLANG_URL, else {LOCAL}"
    )
    add_api_key(parser)
    parser.add_argument("--hidden-size", type=int, metavar="H", help="the width that every vector must have")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line for each check; 0 if all are right."""
    try:
        from tessera.client import Client
        from tessera.client.check import checks
    except ModuleNotFoundError as error:
        print(f"tessera check needs the client library ({error}); {install('client')}")
        return 1
    try:
        client = Client(options.url, api_key=options.api_key)
    except ValueError as error:
        print(error)
        return 1
    wrong = 0
    begin = time.perf_counter()
    with client:
        for check in checks(client, options.hidden_size):
            print(_line(check, time.perf_counter() - begin), flush=True)
            wrong += not check.fine
            begin = time.perf_counter()
    print(f"{wrong} of the checks failed" if wrong else "all checks passed")
    return 1 if wrong else 0


def _line(check: Check, seconds: float) -> str:
    return f"{'ok  ' if check.fine else 'FAIL'}  {check.what:28} {1000 * seconds:7.1f} ms   {check.figure}"
