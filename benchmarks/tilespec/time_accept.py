"""What it takes to accept chains, ours and SGLang's way: on the device, and for the thread that launches it.

    python -m tilespec.time_accept --out time-accept.jsonl

Verifications in full, so that both read as many logits; of those in part SGLang would read as many. Rows are steep, as
those of text are, or nearly flat. Top-k and top-p of SGLang are its Triton form, which sorts: the other one wants nvcc
at the first call. Medians, the two in turn. Ends within a minute; needs a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch

from provenance import note, provenance, show
from tessera_testing.verified import HOWS, VOCABULARY, VerifiedChains

SHAPES = ((1, 4), (8, 4), (32, 4), (64, 4), (64, 8), (128, 4))
"""Requests, tokens of each."""
WARM_UPS, TIMES = 3, 30
_AHEAD = 2_000_000
"""Cycles of the device: a millisecond."""


def main() -> None:
    """Measure each shape, for each way to sample."""
    path = out_path(__doc__)
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton, top_p_renorm_probs_triton

    with path.open("w", encoding="utf-8") as out:
        note(provenance() | {"vocabulary": VOCABULARY, "times": TIMES}, out)
        renormalized = top_k_renorm_probs_triton, top_p_renorm_probs_triton
        for (bs, width), steep, how in itertools.product(SHAPES, (True, False), HOWS):
            verified = VerifiedChains(bs, width, renormalized, steep=steep)
            ways = {
                "ours": lambda: verified.ours(how),  # noqa: B023 - called at once
                "sglang": lambda: verified.sglangs(how),  # noqa: B023
            }
            show({"requests": bs, "width": width, "how": how, "steep": steep, **times(ways)}, out)


def out_path(description: str | None) -> Path:
    """The file that ``--out`` names, on a machine with a GPU."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    path: Path = parser.parse_args().out
    if not torch.cuda.is_available():
        parser.error("needs a GPU: SGLang's operators have no other form")
    return path


def times(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of each way, on the device and on this thread."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found: dict[str, list[float]] = {f"{name}_{place}_us": [] for name in ways for place in ("host", "device")}
    for _ in range(WARM_UPS + TIMES):
        for name, way in ways.items():
            torch.cuda._sleep(_AHEAD)  # noqa: SLF001 - so that no launch is measured on the device
            begin.record()
            start = time.perf_counter()
            way()
            found[f"{name}_host_us"].append((time.perf_counter() - start) * 1e6)
            end.record()
            torch.cuda.synchronize()
            found[f"{name}_device_us"].append(begin.elapsed_time(end) * 1e3)
    return {what: round(median(times[WARM_UPS:]), 1) for what, times in found.items()}


if __name__ == "__main__":
    main()
