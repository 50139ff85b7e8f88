"""What it takes to choose draft tokens from logits, ours and SGLang's way: on the device, and for the thread.

    python -m tilespec.time_drafts --out time-drafts.jsonl

"argmax" is the likeliest token and its probability, "sample" a token that is sampled, its distribution and that
distribution's maximum. SGLang has neither probability, so "sglang" is its own function alone, and
"sglang_and_confidence" has it computed in torch behind it. Medians, all in turn. Ends within a minute; needs a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from provenance import note, provenance, show
from tilespec.time_accept import TIMES, out_path, times

ROWS = (1, 8, 32, 64, 128)
VOCABULARIES = (32000, 128256)


def main() -> None:
    """Measure each shape."""
    with out_path(__doc__).open("w", encoding="utf-8") as out:
        note(provenance() | {"times": TIMES}, out)
        kinds = {"argmax": _argmax, "sample": _sample}
        for vocabulary, rows, (what, ways) in itertools.product(VOCABULARIES, ROWS, kinds.items()):
            show({"rows": rows, "vocabulary": vocabulary, "what": what, **times(ways(rows, vocabulary))}, out)


def _argmax(rows: int, vocabulary: int) -> dict[str, Callable[[], Any]]:
    from sglang.kernels.ops.speculative.topk1 import draft_topk1_postprocess

    from tessera_kernels.ops.draft.draft_confidence import draft_confidence

    logits = torch.randn(rows, vocabulary, device="cuda")
    positions = torch.zeros(rows, dtype=torch.int64, device="cuda")
    chain = torch.zeros(rows, 8, dtype=torch.int64, device="cuda")

    def ours() -> None:
        confidence = torch.empty(rows, device="cuda")
        token = torch.empty((rows, 1), dtype=torch.int64, device="cuda")
        draft_confidence(logits, confidence, token[:, 0], positions, chain[:, 1])

    def sglang() -> None:
        draft_topk1_postprocess(logits, positions, chain, 1)

    def both() -> None:
        sglang()
        logits.softmax(-1).amax(-1)

    return {"ours": ours, "sglang": sglang, "sglang_and_confidence": both}


def _sample(rows: int, vocabulary: int) -> dict[str, Callable[[], Any]]:
    from sglang.srt.speculative.spec_utils import sample_draft_proposal

    from tessera_kernels.ops.draft.draft_proposal import draft_proposal

    logits = torch.randn(rows, vocabulary, device="cuda")
    temperatures = torch.full((rows, 1), 0.8, device="cuda")

    def ours() -> None:
        q, confidence = torch.empty(rows, vocabulary, device="cuda"), torch.empty(rows, device="cuda")
        index = torch.empty((rows, 1), dtype=torch.int64, device="cuda")
        draft_proposal(logits, temperatures, torch.rand(rows, device="cuda"), q, index.view(rows), confidence)

    def sglang() -> Any:
        return sample_draft_proposal(logits, temperatures)

    def both() -> Any:
        return sglang()[0].amax(1)

    return {"ours": ours, "sglang": sglang, "sglang_and_confidence": both}


if __name__ == "__main__":
    main()
