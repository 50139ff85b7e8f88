"""Train the rig's pair on the Python sources of this machine: a target, a draft model, an EAGLE and an EAGLE-3 head.

Minutes on one H200. Each part is a run of its own if you like (`--parts target`, then `--parts draft eagle eagle3`):
what lies in --out already is used. `--sizes smoke` is the same in small, to see that it all runs.

The target learns the text as if its vocabulary had already been widened (see widen.py): the never-used token counts as
often as there will be copies of it, so that all of them together end up with next to no probability.
"""

import argparse
import importlib.metadata
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_training.batches import Windows
from tiny_training.distill import POOL_PROMPT, continuation_pool, distillation_loss
from tiny_training.export import round_weights, write_model
from tiny_training.forward import continue_tokens
from tiny_training.journal import Journal
from tiny_training.loop import Plan, train
from tiny_training.vocabulary import PAD_ID, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from provenance import provenance
from tilespec.heads import Head, head_config, head_weights
from tilespec.llama import Llama
from tilespec.recipe import PARTS, RECIPES, Recipe
from tilespec.sources import encode, read_sources, read_tokens

WEIGHT_DECAY = 0.1
DISTANCE = 0.2
"""Weight of the distance between what an EAGLE head carries and the target's next state."""
HELD_OUT_ROWS = 32
Loss = Callable[[Tensor], Tensor]
LossAt = Callable[[int], Tensor]
Check = Callable[[], Tensor]


class Rig:
    """What all parts share: sizes, the device, the encoded sources, the log.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.recipe: Recipe = RECIPES[options.sizes]
        self.device = torch.device(options.device)
        self.out: Path = options.out
        self.seed: int = options.seed
        self.compile: bool = options.compile and options.sizes == "full"
        self.factor: float = options.time
        self.journal = Journal(
            self.out / f"train-{'-'.join(options.parts)}.jsonl", every=1 if options.sizes == "smoke" else 20
        )
        self.journal.write("start", **provenance_of(options))
        self.tokenizer, self.train, self.held_out = self._tokens()

    def windows(self, part: str) -> Windows:
        """Seeded windows of the training text, others for each part."""
        return Windows(self.train, self.seed + PARTS.index(part))

    def held_out_rows(self, length: int) -> Tensor:
        """The same held-out windows each time: int64 [rows, length]."""
        return Windows(self.held_out, seed=0).draw(HELD_OUT_ROWS, length)

    def mixed(self) -> torch.autocast:
        """bfloat16 on a GPU, from float32 weights."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def counted(self, logits: Tensor) -> Tensor:
        """Float32 logits, with the never-used token standing for all that widening adds."""
        copies = self.recipe.wide_target.vocabulary - self.recipe.target.vocabulary + 1
        bias = torch.zeros(logits.shape[-1], device=logits.device)
        bias[PAD_ID] = math.log(copies)
        return logits.float() + bias

    def compiled(self, loss: Loss) -> Loss:
        """The loss as one graph, where that was asked for."""
        return torch.compile(loss, dynamic=False, fullgraph=True) if self.compile else loss

    def fit(self, part: str, model: nn.Module, rate: float, loss_at: LossAt, check: Check) -> None:
        """Train `model` for the part's time, then round it to bfloat16; `check` returns a held-out figure."""
        rows, window = self.recipe.rows, self.recipe.window
        steps = self.recipe.steps or self._affordable(part, model, loss_at)
        plan = Plan(part, steps, rows, window, window, rate, WEIGHT_DECAY)
        train(model, plan, loss_at, lambda: {"held_out": check().item()}, self.journal)
        round_weights(model)

    def _affordable(self, part: str, model: nn.Module, loss_at: LossAt) -> int:
        """How many steps fit into the part's time: the first ones compile, the next ones are timed."""
        for _ in range(3):
            loss_at(0).backward()
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(5):
            loss_at(0).backward()
        torch.cuda.synchronize()
        each = (time.monotonic() - begin) / 5 * 1.1  # the optimizer, the log and the checks come on top
        model.zero_grad()
        steps = max(50, int(self.recipe.seconds[part] * self.factor / each))
        self.journal.write("plan", part=part, milliseconds_each=1000 * each, steps=steps)
        return steps

    def _tokens(self) -> tuple[Tokenizer, Tensor, Tensor]:
        """Tokenizer, training and held-out streams: made once, then read from --out."""
        names = ("train", "held_out")
        if not (self.out / "held_out.safetensors").exists():
            train_texts, held_out_texts = read_sources(self.recipe.corpus_megabytes, packages=self.recipe.packages)
            share = self.recipe.tokenizer_megabytes * 1_000_000 * len(train_texts) // sum(map(len, train_texts))
            tokenizer = train_tokenizer(train_texts[: max(1, share)], self.recipe.target.vocabulary)
            tokenizer.save(str(self.out / "tokenizer.json"), pretty=False)
            streams = {"train": encode(tokenizer, train_texts), "held_out": encode(tokenizer, held_out_texts)}
            size = {f"{name}_tokens": stream.numel() for name, stream in streams.items()}
            self.journal.write("corpus", files=len(train_texts) + len(held_out_texts), **size)
            for name in names:
                save_file({"tokens": streams[name].to(torch.int16)}, self.out / f"{name}.safetensors")
        tokenizer = Tokenizer.from_file(str(self.out / "tokenizer.json"))
        train_stream, held_out = (read_tokens(self.out / f"{name}.safetensors", self.device) for name in names)
        return tokenizer, train_stream, held_out


def train_target(rig: Rig) -> None:
    """The target learns the text."""
    recipe = rig.recipe
    model = Llama(recipe.target).to(rig.device)
    windows = rig.windows("target")

    def loss_of(tokens: Tensor) -> Tensor:
        logits = rig.counted(model.logits(model(tokens[:, :-1]).last))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    loss = rig.compiled(loss_of)

    def loss_at(_: int) -> Tensor:
        with rig.mixed():
            return loss(windows.draw(recipe.rows, recipe.window + 1))

    @torch.no_grad()
    def check() -> Tensor:
        with rig.mixed():
            return loss_of(rig.held_out_rows(recipe.window + 1))

    rig.fit("target", model, recipe.target_rate, loss_at, check)
    write_model(rig.out / "target", model, recipe.target, rig.tokenizer)


def read_target(rig: Rig) -> Llama:
    """The trained target, frozen, float32.

    Raises:
        SystemExit: it was not trained yet.
    """
    folder = rig.out / "target"
    if not folder.exists():
        raise SystemExit(f"{folder} does not exist: train the target first (--parts target)")
    model = Llama(rig.recipe.target)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(rig.device).requires_grad_(requires_grad=False)


def pool_of(rig: Rig) -> Tensor:
    """Prompts with the target's own continuations, half of them greedy: int64 [rows, tokens]; made once."""
    stored = rig.out / "pool.safetensors"
    if not stored.exists():
        dtype = torch.bfloat16 if rig.device.type == "cuda" else torch.float32
        model = AutoModelForCausalLM.from_pretrained(rig.out / "target", dtype=dtype).to(rig.device)
        sampler = torch.Generator(rig.device).manual_seed(rig.seed)
        pool = continuation_pool(model, rig.windows("draft"), rig.recipe.pool, sampler)
        save_file({"tokens": pool.to(torch.int16)}, stored)
    return read_tokens(stored, rig.device)


class Mixture:
    """Batches, half text and half the target's own continuations."""

    def __init__(self, rig: Rig, part: str, rows: int, window: int) -> None:
        self._windows, self._pool = rig.windows(part), pool_of(rig)
        self._rows, self._window = rows, min(window, self._pool.shape[1])
        self._picker = torch.Generator().manual_seed(rig.seed)

    def draw(self) -> Tensor:
        """Int64 [rows, window]."""
        half = self._rows // 2
        rows = torch.randint(len(self._pool), (self._rows - half,), generator=self._picker)
        text = self._windows.draw(half, self._window)
        return torch.cat([text, self._pool[rows.to(self._pool.device), : self._window]])


def own_text(rig: Rig) -> Tensor:
    """Held-out prompts with the target's greedy continuations, which is what acceptance is about: int64 [rows, 128]."""
    model = AutoModelForCausalLM.from_pretrained(rig.out / "target", dtype=torch.float32).to(rig.device)
    return continue_tokens(model, rig.held_out_rows(POOL_PROMPT), 64).clone()


def train_draft(rig: Rig) -> None:
    """The draft model learns the target's distribution."""
    recipe, target = rig.recipe, read_target(rig)
    model = Llama(recipe.draft).to(rig.device)
    batches, text = Mixture(rig, "draft", 2 * recipe.head_rows, recipe.head_window), own_text(rig)

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            truth = rig.counted(target.logits(target(tokens).last))
        return distillation_loss(rig.counted(model.logits(model(tokens).last)), truth)

    loss = rig.compiled(loss_of)

    def loss_at(_: int) -> Tensor:
        with rig.mixed():
            return loss(batches.draw())

    @torch.no_grad()
    def check() -> Tensor:
        guesses = model.logits(model(text).last).argmax(-1)
        return (guesses[:, POOL_PROMPT:-1] == text[:, POOL_PROMPT + 1 :]).float().mean()

    rig.fit("draft", model, recipe.draft_rate, loss_at, check)
    write_model(rig.out / "draft", model, recipe.draft, rig.tokenizer)


def train_head(rig: Rig, part: str) -> None:
    """An EAGLE or EAGLE-3 head learns the target's distribution from the target's states."""
    recipe, target = rig.recipe, read_target(rig)
    eagle3 = part == "eagle3"
    head = Head(recipe.head, eagle3=eagle3).to(rig.device)
    batches, text = Mixture(rig, part, recipe.head_rows, recipe.head_window), own_text(rig)
    steps = recipe.head_steps

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            states = target(tokens, recipe.inner_layers)
        features = states.inner if eagle3 else states.last
        total = torch.zeros((), device=rig.device)
        for number, step in enumerate(head.chains(target.embedding, tokens, features, steps)):
            seen = states.last[:, 1 + number : 1 + number + step.out.shape[1]]
            total = total + distillation_loss(rig.counted(target.logits(step.out)), rig.counted(target.logits(seen)))
            if not eagle3:
                total = total + DISTANCE * nn.functional.smooth_l1_loss(step.carried.float(), seen.float())
        return total / steps

    loss = rig.compiled(loss_of)

    def loss_at(_: int) -> Tensor:
        with rig.mixed():
            return loss(batches.draw())

    @torch.no_grad()
    def check() -> Tensor:
        states = target(text, recipe.inner_layers)
        features = states.inner if eagle3 else states.last
        rates = []
        for number, step in enumerate(head.chains(target.embedding, text, features, steps)):
            wanted = text[:, 2 + number : 2 + number + step.out.shape[1]]
            right = target.logits(step.out)[:, : wanted.shape[1]].argmax(-1) == wanted
            rates.append(right[:, POOL_PROMPT - 2 :].float().mean())
        rig.journal.write("agreement", part=part, **{f"step_{n + 1}": rate.item() for n, rate in enumerate(rates)})
        return torch.stack(rates).mean()

    rig.fit(part, head, recipe.draft_rate, loss_at, check)
    folder = rig.out / part
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head_weights(head), folder / "model.safetensors", metadata={"format": "pt"})
    settings = head_config(recipe.head, eagle3=eagle3, inner_layers=recipe.inner_layers)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def provenance_of(options: argparse.Namespace) -> dict[str, object]:
    """What is needed to judge and repeat the run."""
    chosen = {name: str(value) for name, value in vars(options).items()}
    packages = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")}
    return provenance() | {"options": chosen, "packages": packages}


def main() -> None:
    """Train what was asked for, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models, the tokens and the log")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to train (default: all)")
    parser.add_argument("--sizes", choices=RECIPES, default="full", help="of recipe.py (default %(default)s)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--time", type=float, default=1.0, help="times the recipe's seconds (default 1; 0.05 to try)")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="run eagerly: half as fast")
    parser.add_argument("--seed", type=int, default=17)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # a host's cuDNN may be older than the one that torch was made for
    if options.sizes != "full":
        torch.set_num_threads(1)  # tiny matrices: on a busy machine threads spend their time waiting for each other
    options.out.mkdir(parents=True, exist_ok=True)
    rig = Rig(options)
    for part in PARTS:
        if part not in options.parts:
            continue
        if part == "target":
            train_target(rig)
        elif part == "draft":
            train_draft(rig)
        else:
            train_head(rig, part)


if __name__ == "__main__":
    main()
