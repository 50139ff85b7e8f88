"""How far two ways of computing a model in bfloat16 are from float32, both by transformers: eager attention and SDPA.

Where one error is now smaller and now larger than the other, no implementation can promise "at most transformers' own".

    benchmarks/bfloat16_errors.py --out bfloat16-errors.jsonl Llama "Gemma 3" Mellum
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModel

from provenance import provenance, show
from tessera_testing.architectures import make
from tessera_testing.injected import prompt_of
from tessera_testing.reference import relative_error

PROMPTS, LENGTH = 20, 60
WAYS = ("eager", "sdpa")


def main() -> None:
    """Measure each architecture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="of tests/support/tessera_testing/architectures.py")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with options.out.open("w") as out:
        show(provenance() | {"prompts": PROMPTS, "tokens": LENGTH}, out)
        for name in options.names:
            show({"architecture": name, **_measure(name)}, out)


def _measure(name: str) -> dict[str, Any]:
    """The relative error of each way, by prompt, and eager attention's over that of SDPA."""
    with tempfile.TemporaryDirectory() as folder:
        _, model = make(Path(folder), name)
        exact = _load(model, torch.float32, "eager")
        rounded = {way: _load(model, torch.bfloat16, way) for way in WAYS}
    errors: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(PROMPTS):
        prompt = prompt_of(LENGTH, seed=seed)
        expected = _rows(exact, prompt)
        for way, one in rounded.items():
            errors[way].append(relative_error(_rows(one, prompt), expected))
    ratios = [eager / sdpa for eager, sdpa in zip(errors["eager"], errors["sdpa"], strict=True)]
    spread = {"least": min(ratios), "median": median(ratios), "largest": max(ratios)}
    return {"ratio": spread, "above 1": sum(ratio > 1 for ratio in ratios), "errors": errors}


def _load(model: Path, dtype: torch.dtype, attention: str) -> Any:
    return AutoModel.from_pretrained(model, dtype=dtype, attn_implementation=attention).eval()


def _rows(model: Any, prompt: list[int]) -> Any:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([prompt]), use_cache=False).last_hidden_state[0].double().numpy()


if __name__ == "__main__":
    main()
