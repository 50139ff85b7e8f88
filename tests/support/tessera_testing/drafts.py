"""Options of servers that draft with the tiny models, and what such servers are asked."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tessera_testing.tiny import TINY, TINY_DRAFT, TINY_EAGLE, TINY_EAGLE3

MODELS = {"EAGLE": TINY_EAGLE, "EAGLE3": TINY_EAGLE3, "STANDALONE": TINY_DRAFT}
CODE = [
    "def main():\n    import",
    "class Foo(object):\n    def __init__(self",
    "import os\n\nfor i in range",
    "# This",
]


def _shape(steps: int, topk: int, tokens: int) -> tuple[str, ...]:
    counts = {"num-steps": steps, "eagle-topk": topk, "num-draft-tokens": tokens}
    return tuple(part for name, count in counts.items() for part in (f"--speculative-{name}", str(count)))


def chain(drafted: int) -> tuple[str, ...]:
    """Drafts without branches, of so many tokens and the anchor."""
    return _shape(drafted, 1, drafted + 1)


TREE = _shape(3, 4, 8)
"""Drafts with branches: 7 tokens and the anchor, in 3 steps."""


def drafting(algorithm: str, shape: tuple[str, ...], model: Path | None = None) -> tuple[str, ...]:
    """Options of a server that drafts with the tiny model for this algorithm of SGLang's, or with another."""
    folder = MODELS[algorithm] if model is None else model
    return ("--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(folder), *shape)


def write_reduced_head(folder: Path) -> Path:
    """Write the tiny EAGLE-3 head into ``folder``, which it returns, as one that knows 920 of the target's 1024 tokens.

    Published heads know some, too. Its own number of each is its place among them, which are in no order.
    """
    import torch
    from safetensors.torch import load_file, save_file

    known = torch.tensor(random.Random(3).sample(range(1024), 920))
    weights = load_file(TINY_EAGLE3 / "model.safetensors")
    outputs = load_file(TINY / "model.safetensors")["model.embed_tokens.weight"]  # tied to the output matrix
    weights |= {"lm_head.weight": outputs[known], "d2t": known - torch.arange(len(known))}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((TINY_EAGLE3 / "config.json").read_text()) | {"draft_vocab_size": len(known)}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def retracting(interval: int) -> dict[str, str]:
    """Environment of a server that retracts requests every so many steps."""
    return {"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": str(interval)}


def code_and_noise(tokenizer: Any, seed: int) -> list[list[int]]:
    """Token ids of `CODE`, whose continuations drafts foresee, and noise of several lengths, where they fail."""
    chooser = random.Random(seed)
    code: list[list[int]] = tokenizer(CODE)["input_ids"]
    return code + [[chooser.randrange(8, 1000) for _ in range(length)] for length in (1, 7, 33, 70)]
