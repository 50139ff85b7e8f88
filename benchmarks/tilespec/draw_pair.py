"""A pair of 8B cost that nobody trained, in seconds: for what does not depend on which drafts are accepted.

    python -m tilespec.draw_pair --tokenizer /tmp/m8b --out /tmp/wide --prompts /tmp/prompts.json

None is: the target is a configuration for SGLang's ``--load-format dummy``, whose numbers are next to nothing; the
EAGLE-3 head's weights are drawn, and loaded with ``--speculative-draft-load-format auto``. Prompts are random tokens.
"""

import argparse
import random
import shutil
from pathlib import Path

import torch

from tilespec.heads import Head, head_weights
from tilespec.pad_target import write_head, write_target_config
from tilespec.prompts import Prompts
from tilespec.recipe import RECIPES, Recipe

SEED = 17
TOKENIZER_FILES = "*token*.json"


def main() -> None:
    """Write them."""
    options = _options()
    recipe = RECIPES[options.sizes]
    draw(recipe, options.tokenizer, options.out, "cuda" if torch.cuda.is_available() else "cpu")
    options.prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts_of(recipe).write(options.prompts)


def draw(recipe: Recipe, tokenizer: Path, out: Path, device: str) -> None:
    """Write the folders ``target`` and ``eagle3``."""
    target, head = out / "target", recipe.wide_head
    target.mkdir(parents=True)
    for file in tokenizer.glob(TOKENIZER_FILES):
        shutil.copy(file, target)
    write_target_config(target, recipe.wide_target)
    torch.manual_seed(SEED)
    with torch.device(device):
        weights = head_weights(Head(head, eagle3=True))
        outputs = torch.randn(recipe.draft_vocabulary, head.hidden) / head.hidden**0.5
    write_head(weights, out / "eagle3", head, recipe.inner_layers, outputs.bfloat16().cpu())


def prompts_of(recipe: Recipe) -> Prompts:
    """Of random tokens, the same ones of each kind."""
    chooser = random.Random(SEED)
    signs = list(range(recipe.wide_target.vocabulary - 64, recipe.wide_target.vocabulary - 28))
    tokens = range(64, signs[0])
    texts = [chooser.choices(tokens, k=recipe.prompt_tokens) for _ in range(recipe.prompts)]
    return Prompts(dict.fromkeys(("easy", "mixed", "hard"), texts), {}, {}, before=[10, 11], signs=signs, after=[12])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of a model of the same vocabulary")
    parser.add_argument("--out", type=Path, required=True, help="folder, not there yet")
    parser.add_argument("--prompts", type=Path, required=True, help="file to write")
    parser.add_argument("--sizes", choices=RECIPES, default="full")
    return parser.parse_args()


if __name__ == "__main__":
    main()
