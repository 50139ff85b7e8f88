"""The command line of `train_tiny.py`."""

import argparse
import sysconfig
from functools import partial
from pathlib import Path

from tiny_training.shapes import POSITIONS

HERE = Path(__file__).resolve().parents[1]
MODELS = HERE.parents[1] / "tests/support/models"


def arguments(description: str | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""examples:
  train_tiny.py --device cuda               as committed: 3 minutes on an H200
  train_tiny.py --device cpu --steps 20 --draft-steps 20 --rows 2 --window 128 \\
      --long-window 256 --pool 64 --out /tmp/tiny --log /tmp/tiny/log.jsonl
                                            does it all run? (a minute, bad models)
  train_tiny.py --moe --device cpu --steps 1000 --rows 4 --window 256 --long-window 512 \\
      --pool 256 --every 20                 tiny-moe as committed: 15 minutes on a CPU core

The same corpus, seed, versions and GPU give the same weights.""",
    )
    add = partial(parser.add_argument, metavar="N", type=int)
    parser.add_argument("--moe", action="store_true", help="make tiny-moe from the tiny in --out, and nothing else")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    add("--steps", default=2000, help="target's steps (default %(default)s)")
    add("--draft-steps", default=5000, help="draft's steps (default %(default)s)")
    parser.add_argument(
        "--weight-decay",
        metavar="X",
        type=float,
        default=2.0,
        help="of the target: more keeps it from learning the corpus by heart (%(default)s)",
    )
    add("--rows", default=32, help="windows in a batch (default %(default)s)")
    add("--window", default=1024, help="tokens in a window (default %(default)s)")
    add("--long-window", default=POSITIONS, help="the same, near the end (%(default)s)")
    add("--pool", default=32768, help="target continuations to distil (%(default)s)")
    add("--seed", default=17, help="of weights, windows, samples (%(default)s)")
    add("--every", default=100, help="steps between log lines (%(default)s)")
    path = partial(parser.add_argument, metavar="PATH", type=Path)
    path("--corpus", default=sysconfig.get_paths()["stdlib"], help="(%(default)s)")
    path("--out", default=MODELS, help="gets tiny/ and tiny-draft/, or tiny-moe/ (%(default)s)")
    path("--log", help=f"JSON lines (default: {HERE}/tiny-train.jsonl, or tiny-moe.jsonl)")
    path("--plot", help="PNG of the loss curves (needs matplotlib; default: none)")
    options = parser.parse_args()
    options.log = options.log or HERE / ("tiny-moe.jsonl" if options.moe else "tiny-train.jsonl")
    return options
