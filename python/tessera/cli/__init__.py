"""The command ``tessera``."""

import argparse
import sys

from tessera import __version__
from tessera.cli import check, doctor, encode, seams, serve, tilespec, toploc, verify

INTERRUPTED = 130
"""The exit status after Ctrl-C, as a shell reports it: 128 and the signal's number."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Return the parser of all its commands; each sets ``run``."""
    parser = argparse.ArgumentParser(
        prog="tessera",
        description="Tessera extends a stock SGLang server. Start the server as always, for example:\n"
        "  python -m sglang.launch_server --model-path MODEL --enable-return-hidden-states\n"
        "or by: tessera serve MODEL",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tessera {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve.add(commands)
    check.add(commands)
    doctor.add(commands)
    encode.add(commands)
    seams.add(commands)
    tilespec.add(commands)
    toploc.add(commands)
    verify.add(commands)
    return parser
