"""Choose held-out code that the target continues predictably (easy), or not (hard), and some of all kinds (mixed).

    python -m tilespec.prompts --pair /tmp/pair --out /tmp/prompts.json

What is measured is the target's own entropy over its greedy continuation, in nats per token: the third of the windows
with the least is easy, the third with the most is hard, and mixed is drawn from all. The drafts have no say in it.
Greedy continuations of small models tend to end in loops, which are easy; the file says how many do.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tiny_training.batches import Windows
from tiny_training.forward import Model, continue_tokens
from tiny_training.measure import looping_part
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from tilespec.recipe import RECIPES
from tilespec.sources import read_tokens

CONTINUATION = 128
ROWS_AT_ONCE = 256
TAG_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"
TAG_LENGTH = 8


@dataclass(frozen=True)
class Prompts:
    """Prompts by kind (easy, mixed, hard), each a list of token ids, and the ids that a tag is made of.

    `entropy` (nats per token) and `looping` (a share) describe the target's greedy continuations.
    """

    kinds: dict[str, list[list[int]]]
    entropy: dict[str, float]
    looping: dict[str, float]
    before: list[int]
    signs: list[int]
    after: list[int]

    def draw(self, kind: str, seed: str) -> Iterator[list[int]]:
        """Endless prompts of one kind in a seeded order, each behind a tag of its own.

        The tag, a comment of eight letters and digits, is drawn from `seed` too: two requests of a run share three or
        four tokens at most, so a prefix cache has nothing to give.
        """
        chooser = random.Random(f"{kind} {seed}")
        while True:
            tag = chooser.choices(self.signs, k=TAG_LENGTH)
            yield [*self.before, *tag, *self.after, *chooser.choice(self.kinds[kind])]

    def write(self, path: Path) -> None:
        """As one JSON object."""
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


def read_prompts(path: Path) -> Prompts:
    """What `Prompts.write` wrote."""
    return Prompts(**json.loads(path.read_text(encoding="utf-8")))


def choose(model: Model, tokenizer: Tokenizer, windows: Tensor, seed: int) -> Prompts:
    """Sort `windows` [rows, length] into the three kinds, each a third of them."""
    parts = [_continued(model, part) for part in windows.split(ROWS_AT_ONCE)]
    entropy, continued = (torch.cat(column) for column in zip(*parts, strict=True))
    order = entropy.argsort()
    third = len(order) // 3
    mixed = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))[:third].to(order.device)
    known = tokenizer.get_vocab()
    places = {"easy": order[:third], "mixed": mixed, "hard": order[-third:]}
    return Prompts(
        kinds={kind: windows[rows].tolist() for kind, rows in places.items()},
        entropy={kind: round(entropy[rows].mean().item(), 4) for kind, rows in places.items()},
        looping={kind: round(looping_part(continued[rows]), 4) for kind, rows in places.items()},
        before=tokenizer.encode("# ").ids,
        signs=[known[sign] for sign in TAG_SIGNS],
        after=tokenizer.encode("\n").ids,
    )


@torch.no_grad()
def _continued(model: Model, prompts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean entropy of the target over its greedy continuation [rows], and the continuation [rows, tokens]."""
    full = continue_tokens(model, prompts, CONTINUATION)
    length = prompts.shape[1]
    logits = model(input_ids=full[:, :-1], use_cache=False).logits[:, length - 1 :].float()
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1).mean(-1), full[:, length:].clone()


def main() -> None:
    """Choose and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder that train_pair wrote")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--sizes", choices=RECIPES, default="full", help="those that the pair was trained with")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    recipe = RECIPES[options.sizes]
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options.pair / "target", dtype=dtype).to(options.device)
    stream = read_tokens(options.pair / "held_out.safetensors", options.device)
    windows = Windows(stream, options.seed).draw(3 * recipe.prompts, recipe.prompt_tokens)
    tokenizer = Tokenizer.from_file(str(options.pair / "tokenizer.json"))
    prompts = choose(model, tokenizer, windows, options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    prompts.write(options.out)
    print(json.dumps({"entropy": prompts.entropy, "looping": prompts.looping}))


if __name__ == "__main__":
    main()
