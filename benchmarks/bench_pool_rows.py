"""Bandwidth of the pooling kernel, beside that of a copy on the same GPU. Ends within a minute.

Each shape is ``SPANS/TOKENS/HIDDEN``; slots are scattered, as a server's are after a while. A pooled span reads its
rows once; a copy reads and writes, and both count. ``--tiles`` tries other tiles than the one in force. Example:

  python benchmarks/bench_pool_rows.py --out benchmarks/results/pool-rows.jsonl --tiles 32/64/4 64/64/4 64/128/8
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from provenance import provenance, show
from tessera_kernels.ops.rows.pool_rows import Reduce, Span, pool_rows
from tessera_kernels.triton.rows.pool_rows import TILE, Tile, pool_rows_triton

GOAL = 0.7


class Shape(NamedTuple):
    """So many spans of so many tokens, H values each."""

    spans: int
    tokens: int
    hidden: int


def main() -> None:
    """Measure every shape with every tile."""
    options = _options()
    with options.out.open("w") as out:
        for record in itertools.chain([provenance()], _measure(options)):
            show(record, out)


def _measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for shape in options.shapes:
        rows = torch.randn(shape.spans * shape.tokens, shape.hidden, device="cuda", dtype=torch.bfloat16)
        slots = torch.randperm(len(rows), device="cuda").int().reshape(shape.spans, shape.tokens)
        target = torch.empty_like(rows)
        copy = 2 * rows.nbytes / _seconds(lambda: target.copy_(rows))  # noqa: B023 - called at once
        yield {"shape": shape, "copy_bytes_per_second": round(copy)}
        for tile in options.tiles:
            for reduce in Reduce:
                yield {"shape": shape, "tile": tile, **_pooled(rows, slots, reduce, tile, copy)}


def _pooled(rows: torch.Tensor, slots: torch.Tensor, reduce: Reduce, tile: Tile, copy: float) -> dict[str, Any]:
    spans = [Span(request, 0, slots.shape[1], reduce) for request in range(len(slots))]
    found = pool_rows_triton(rows, slots, spans, tile=tile)
    torch.cuda.synchronize()
    torch.testing.assert_close(found[:2], pool_rows.reference(rows, slots, spans[:2]), rtol=1e-4, atol=1e-5)
    seconds = _seconds(lambda: pool_rows_triton(rows, slots, spans, tile=tile))
    share = rows.nbytes / seconds / copy
    return {
        "reduce": reduce.name,
        "microseconds": round(1e6 * seconds, 2),
        "bytes_per_second": round(rows.nbytes / seconds),
        "of_copy": round(share, 4),
        "goal": GOAL,
    }


def _seconds(work: Callable[[], Any], repeats: int = 30) -> float:
    """The median of single runs on the device; the host stays ahead of it."""
    warm = [work() for _ in range(repeats)]  # from now on so much pinned memory is there: getting it takes milliseconds
    del warm
    pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(repeats)]
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)  # noqa: SLF001 - the device waits some 10 ms, so that no launch is measured
    outputs = []  # until the device is done: it fills them
    for begin, end in pairs:
        begin.record()
        outputs.append(work())
        end.record()
    torch.cuda.synchronize()
    return 0.001 * float(statistics.median(begin.elapsed_time(end) for begin, end in pairs))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here")
    parser.add_argument(
        "--shapes",
        type=lambda text: Shape(*map(int, text.split("/"))),
        nargs="+",
        default=[Shape(64, 2048, 4096), Shape(1, 512, 4096), Shape(16, 512, 4096), Shape(1, 30_000, 4096)],
        help="SPANS/TOKENS/HIDDEN",
    )
    parser.add_argument(
        "--tiles",
        type=lambda text: Tile(*map(int, text.split("/"))),
        nargs="+",
        default=[TILE],
        help="ROWS/COLUMNS/WARPS (default: the one in force)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
