"""Distances of honest responses and of known cheats, without a server: Hugging Face, bfloat16, the tiny model, CPU.

The prover decodes token by token with a KV cache, the verifier runs one prefill; `tessera toploc calibrate` does the
same with real servers. Takes two minutes. Example:

  python benchmarks/toploc_tiny.py --out toploc-tiny.json --plot toploc-tiny.png
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from provenance import provenance
from tessera.fingerprint import codec
from tessera.fingerprint.calibration import cheats
from tessera.fingerprint.calibration.distances import Measured, report
from tessera.fingerprint.calibration.histograms import draw
from tessera.fingerprint.calibration.prover import Response, prompts, tampered
from tessera.fingerprint.chunks import layout
from tessera.fingerprint.codec import Points
from tessera.fingerprint.verifier import distances
from tessera_testing.tiny import TINY

TOPK = 128


def main() -> None:
    """Measure, write, draw."""
    options = _options()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    ids = [tokenizer(text)["input_ids"] for text in prompts(options.responses)]
    model = _load(TINY)
    made = [_prove(model, prompt, options.tokens) for prompt in ids]
    bad = {name: [_prove(cheat, prompt, options.tokens) for prompt in ids] for name, cheat in _cheats().items()}
    for how in ("changed prompt", "changed early token"):
        bad[how] = [tampered(response, how) for response in made]
    honest = {"decode": [_verify(model, response) for response in made]}
    measured = {name: [_verify(model, response) for response in responses] for name, responses in bad.items()}
    found: dict[str, Any] = report(honest, measured, TOPK)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(provenance() | found, indent=1) + "\n")
    draw(honest, measured, found["thresholds"], options.plot)
    for name, row in {**found["honest"], **found["cheats"]}.items():
        print(f"{name:20s} {row['passed']:4d} {row['passed_by_default']:4d} of {row['responses']}")


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def _cheats() -> dict[str, Any]:
    models = {}
    for name in (*cheats.PRECISIONS, "skipped layer"):
        with tempfile.TemporaryDirectory() as folder:
            if name in cheats.PRECISIONS:
                cheats.requantized(TINY, Path(folder), name)
            else:
                cheats.without_last_layer(TINY, Path(folder))
            models[name] = _load(Path(folder))
    return models


@torch.inference_mode()
def _prove(model: Any, prompt: list[int], tokens: int) -> Response:
    cache, rows, fed, output = None, [], torch.tensor([prompt]), []
    for _ in range(tokens):
        answer = model.model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        rows.append(answer.last_hidden_state[0])
        logits = model.lm_head(rows[-1][-1]).float() / 0.8
        output.append(int(torch.multinomial(logits.softmax(-1), 1)))
        fed = torch.tensor([output[-1:]])
    built = codec.build(_points(torch.cat(rows), len(prompt)))
    return Response(prompt, output, [one.to_base64() for one in built])


@torch.inference_mode()
def _verify(model: Any, response: Response) -> Measured:
    fed = torch.tensor([response.input_ids + response.output_ids[:-1]])
    own = _points(model.model(input_ids=fed).last_hidden_state[0], len(response.input_ids))
    claimed = [codec.parse("fingerprint", text, TOPK) for text in response.fingerprints]
    return Measured(distances(claimed, own), [len(one.places) for one in own])


def _points(rows: torch.Tensor, prompt_tokens: int) -> list[Points]:
    found = []
    for start, end in layout(prompt_tokens, len(rows)):
        flat = rows[start:end].reshape(-1)
        places = flat.abs().topk(TOPK).indices
        found.append(Points(places.numpy(), flat[places].view(torch.int16).numpy().view(np.uint16)))
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results, JSON")
    parser.add_argument("--plot", type=Path, required=True, help="histograms, PNG")
    parser.add_argument("--responses", type=int, default=40, help="of each kind (default 40)")
    parser.add_argument("--tokens", type=int, default=97, help="generated for each (default 97)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
