"""Give the trained pair the cost of Llama-3.1-8B (and of a 1B draft model), and show that it computes the same.

    python -m tilespec.pad_target --pair /tmp/pair --out /tmp/wide

writes `target`, `draft` (1B), `eagle`, `eagle3` (which knows 32,000 of the target's tokens, as published heads do) and
`useless` (the EAGLE head with its input mixed up: as costly as the other, hardly ever right), of those that were
trained, in the wide shape of recipe.py, by the rules of widen.py. Then it compares, on held-out text, the wide target
with the narrow one in float32, and each head; what it finds goes to --out/agreement.jsonl.
Results with these models have the latency of an 8B model and the acceptance of the trained pair. Say so beside them.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_training.batches import Windows
from tiny_training.journal import Journal
from tiny_training.shapes import Shape, config_of
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from provenance import provenance
from tilespec.heads import head_config, head_from_weights
from tilespec.recipe import RECIPES, Recipe
from tilespec.sources import read_tokens
from tilespec.widen import Widening, widened_head, widened_model, widened_table

SHARD_BYTES = 2_000_000_000
MODEL_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
OUTPUTS = "lm_head.weight", "d2t"
"""A head's own output matrix, and by how much each token's number in the target is greater than its own."""
ROUNDING = 3.0
"""The wide model in bfloat16 may be this many times as far from the narrow one in float32 as that in bfloat16 is."""
LEAST_DIVERGENCE = 1e-4
"""Nats per token below which a difference is not looked at."""


def main() -> None:
    """Widen what was trained, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder that train_pair wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wide models")
    parser.add_argument("--sizes", choices=RECIPES, default="full", help="those that the pair was trained with")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    recipe = RECIPES[options.sizes]
    journal = Journal(options.out / "agreement.jsonl", every=1)
    journal.write("start", **provenance())
    for name, narrow, wide in (
        ("target", recipe.target, recipe.wide_target),
        ("draft", recipe.draft, recipe.wide_draft),
    ):
        if (options.pair / name).exists():
            write_wide_model(options.pair / name, options.out / name, Widening(narrow, wide), options.device)
    widening = Widening(recipe.head, recipe.wide_head)
    for name, source in (("eagle", "eagle"), ("eagle3", "eagle3"), ("useless", "eagle")):
        if (options.pair / source).exists():
            weights = load_file(options.pair / source / "model.safetensors")
            if name == "useless":
                mix_up(weights)
            outputs = outputs_of(options.pair / "target", recipe) if name == "eagle3" else None
            write_wide_head(weights, options.out / name, widening, recipe.inner_layers, outputs)
    compare(options, recipe, journal)


def write_wide_model(source: Path, out: Path, widening: Widening, device: str) -> None:
    """Write the wide form of a language model, in shards."""
    out.mkdir(parents=True, exist_ok=True)
    weights = load_file(source / "model.safetensors", device=device)
    index: dict[str, str] = {}
    named = tqdm(widened_model(weights.__getitem__, widening), desc=str(out), unit="tensor")
    for number, shard in enumerate(shards(named)):
        file = f"model-{number:05d}.safetensors"
        save_file(shard, out / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
    _write_json(out / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    write_target_config(out, widening.wide)
    for file in MODEL_FILES:
        shutil.copy(source / file, out / file)


def write_target_config(out: Path, shape: Shape) -> None:
    """That of a wide target or draft model, whose output matrix is its own."""
    _write_json(out / "config.json", config_of(shape) | {"tie_word_embeddings": False})


def shards(named: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Tensors on the CPU, in groups of about `SHARD_BYTES`."""
    shard: dict[str, Tensor] = {}
    for name, tensor in named:
        shard[name] = tensor.cpu().contiguous()
        if sum(part.nbytes for part in shard.values()) >= SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard


def mix_up(weights: dict[str, Tensor]) -> None:
    """Make a head read its input mixed up (in place), at the same cost: it is hardly ever right."""
    mixed = torch.randperm(len(weights["fc.weight"]), generator=torch.Generator().manual_seed(0))
    weights["fc.weight"] = weights["fc.weight"][mixed]


def outputs_of(target: Path, recipe: Recipe) -> Tensor:
    """The rows of the wide target's output matrix that an EAGLE-3 head has: the first `draft_vocabulary`."""
    widening = Widening(recipe.target, recipe.wide_target)
    table = widened_table(load_file(target / "model.safetensors").__getitem__, widening)
    return table[: recipe.draft_vocabulary] / widening.copies


def write_wide_head(
    weights: dict[str, Tensor],
    out: Path,
    widening: Widening,
    inner_layers: tuple[int, ...],
    outputs: Tensor | None = None,
) -> None:
    """Write the wide form of a head."""
    wide = dict(widened_head(weights.__getitem__, widening, eagle3=_is_eagle3(weights)))
    write_head(wide, out, widening.wide, inner_layers, outputs)


def write_head(
    weights: dict[str, Tensor],
    out: Path,
    shape: Shape,
    inner_layers: tuple[int, ...],
    outputs: Tensor | None = None,
) -> None:
    """Write a head as SGLang loads it; with an output matrix of its own it knows the first tokens alone."""
    out.mkdir(parents=True, exist_ok=True)
    known = None if outputs is None else len(outputs)
    if outputs is not None:
        weights = weights | dict(zip(OUTPUTS, (outputs, torch.zeros(len(outputs), dtype=torch.int64)), strict=True))
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, out / "model.safetensors", metadata={"format": "pt"})
    config = head_config(shape, eagle3=_is_eagle3(weights), inner_layers=inner_layers, known=known)
    _write_json(out / "config.json", config)


def _is_eagle3(weights: dict[str, Tensor]) -> bool:
    """Whether these are such a head's, or an EAGLE head's."""
    return "norm.weight" in weights


def compare(options: argparse.Namespace, recipe: Recipe, journal: Journal) -> None:
    """Measure how far the wide models are from the narrow ones.

    Raises:
        SystemExit: further than rounding explains.
    """
    tokens = held_out(options, recipe)
    wide_type = torch.bfloat16 if options.device == "cuda" else torch.float32
    truth = run(options.pair / "target", tokens, torch.float32, recipe.inner_layers)
    rounded = run(options.pair / "target", tokens, wide_type, recipe.inner_layers)
    wide = run(options.out / "target", tokens, wide_type, recipe.inner_layers)
    vocabulary = recipe.target.vocabulary
    expected = difference(rounded["logits"], truth["logits"])
    found = difference(wide["logits"][..., :vocabulary], truth["logits"])
    added = wide["logits"].float().softmax(-1)[..., vocabulary:].sum(-1)
    journal.write("target", what="narrow, rounded", **expected)
    journal.write("target", what="wide", **found, mass_of_added_tokens=added.mean().item())
    far = [found["divergence"] > max(ROUNDING * expected["divergence"], LEAST_DIVERGENCE)]
    for name in [name for name in ("eagle", "eagle3") if (options.pair / name).exists()]:
        narrow_head = head_logits(options.pair / name, recipe.head, tokens, truth, copies=1)
        wide_head = head_logits(
            options.out / name,
            recipe.wide_head,
            tokens,
            wide,
            copies=recipe.wide_target.hidden // recipe.target.hidden,
        )
        moved = difference(wide_head[..., :vocabulary], narrow_head)
        journal.write("head", what=name, **moved)
        far.append(moved["divergence"] > max(10 * ROUNDING * expected["divergence"], LEAST_DIVERGENCE))
    print((options.out / "agreement.jsonl").read_text())
    if any(far):
        sys.exit("the wide models differ from the narrow ones by more than rounding: see agreement.jsonl")


def held_out(options: argparse.Namespace, recipe: Recipe) -> Tensor:
    """Held-out text: int64 [rows, length]."""
    stream = read_tokens(options.pair / "held_out.safetensors", options.device)
    return Windows(stream, seed=1).draw(4, recipe.prompt_tokens)


@torch.no_grad()
def run(folder: Path, tokens: Tensor, dtype: torch.dtype, inner_layers: tuple[int, ...]) -> dict[str, Tensor]:
    """Hugging Face's `logits`, `last` and `inner` states and the `embedding`, for `tokens`, in their dtype."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(tokens.device)
    answer = model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    states = answer.hidden_states
    return {
        "logits": answer.logits,
        "last": states[-1],
        "inner": torch.cat([states[layer + 1] for layer in inner_layers], -1),
        "embedding": model.get_input_embeddings().weight,
    }


@torch.no_grad()
def head_logits(folder: Path, shape: Shape, tokens: Tensor, target: dict[str, Tensor], copies: int) -> Tensor:
    """Float32 logits of a head's second step: [rows, chains, vocabulary].

    The output matrix is the embedding divided by `copies`, as in the wide target.
    """
    weights = load_file(folder / "model.safetensors")
    for name in OUTPUTS:
        weights.pop(name, None)
    eagle3 = _is_eagle3(weights)
    head = head_from_weights(shape, weights, eagle3=eagle3).to(tokens.device)
    features = target["inner" if eagle3 else "last"].float()
    table = target["embedding"].float()
    return head.chains(table, tokens, features, 2)[1].out @ (table / copies).T


def difference(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Of logits [..., vocabulary]: KL in nats per token, how often favourites are the same, the largest difference."""
    found, truth = found.float(), truth.float()
    divergence = torch.nn.functional.kl_div(
        found.log_softmax(-1), truth.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    return {
        "divergence": divergence.mean().item(),
        "same_favourite": (found.argmax(-1) == truth.argmax(-1)).float().mean().item(),
        "largest_difference": (found - truth).abs().max().item(),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
