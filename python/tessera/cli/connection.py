"""What the commands share that talk to a server: its key."""

import argparse
import os

API_KEY = "SGLANG_API_KEY"
"""Environment: the key, for those who do not want it among the arguments, which other users of the machine see."""


def add_api_key(parser: argparse.ArgumentParser) -> None:
    """Add ``--api-key``, which the environment may give."""
    parser.add_argument(
        "--api-key",
        default=os.environ.get(API_KEY) or None,
        help=f"of a server that was started with --api-key; default: ${API_KEY}",
    )
