"""The command ``tessera``."""

from __future__ import annotations  # argparse's types take parameters for type checkers alone

import argparse
import sys
from functools import partial
from importlib.util import find_spec

from tessera import __version__
from tessera.cli import check, doctor, encode, seams, serve, tilespec, verify
from tessera.installing import in_checkout

CALIBRATES = find_spec("tessera.capabilities.fingerprints.calibration") is not None
"""Whether the campaign that calibrates fingerprints is here: the wheel leaves it out."""
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
    _add_toploc(commands)
    verify.add(commands)
    return parser


def _add_toploc(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    if CALIBRATES:
        from tessera.cli import toploc

        toploc.add(commands)
        return
    missing = in_checkout("tessera toploc calibrate")
    parser = commands.add_parser("toploc", help=missing)
    parser.add_argument("calibrate", nargs=argparse.REMAINDER)
    parser.set_defaults(run=partial(_say, missing))


def _say(message: str, _: argparse.Namespace) -> int:
    print(message, file=sys.stderr)
    return 1
