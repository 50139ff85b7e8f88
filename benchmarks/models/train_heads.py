#!/usr/bin/env python3
"""Make the EAGLE and EAGLE-3 heads of the tiny model that ship with Tessera's tests.

Each is one decoder layer below 1 MiB, distilled from `tiny`; minutes on two CPU cores. No download.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import save
from tiny_training.batches import Windows, encode_documents
from tiny_training.corpus import load_corpus
from tiny_training.distill import POOL_ADDED, POOL_PROMPT, distillation_loss
from tiny_training.export import round_weights, write_json
from tiny_training.forward import Model, continue_tokens
from tiny_training.heads import Head, head_config, head_weights, steps_of, truth_of
from tiny_training.journal import Journal
from tiny_training.loop import Plan, train
from tiny_training.vocabulary import document
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tessera_testing.tiny import TINY

#: Draft steps that are trained, and measured.
STEPS = 3
#: Weight of the distance between what an EAGLE head carries and the target's next state.
DISTANCE = 0.2
PEAK_RATE = 3e-3
WEIGHT_DECAY = 0.05


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=TINY.parent, help="folder for tiny-eagle and tiny-eagle3")
    parser.add_argument("--log", type=Path, default=Path(__file__).with_name("tiny-heads.jsonl"), help="training log")
    parser.add_argument("--corpus", type=Path, default=Path(sysconfig.get_paths()["stdlib"]), help="Python sources")
    parser.add_argument("--steps", type=int, default=300, help="steps for each head")
    parser.add_argument("--rows", type=int, default=4, help="windows in a batch, as many of text as of continuations")
    parser.add_argument("--window", type=int, default=128, help="tokens in a window")
    parser.add_argument("--pool", type=int, default=256, help="prompts that the target continues, greedily and sampled")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def continuations(target: Model, prompts: Tensor, sampler: torch.Generator) -> Tensor:
    """Each prompt with the target's own continuation: the first half greedy, the second sampled; int64 [rows, ...]."""
    greedy, sampled = prompts.chunk(2)
    both = [continue_tokens(target, greedy, POOL_ADDED), continue_tokens(target, sampled, POOL_ADDED, sampler=sampler)]
    # Cloned, since tensors made in inference mode cannot be trained on.
    return torch.cat(both).clone()


def loss_of(head: Head, embedding: Tensor, target: Model, tokens: Tensor) -> Tensor:
    """Nats per token, over all draft steps."""
    truth = truth_of(target, tokens, eagle3=head.eagle3)
    losses = []
    for step, (logits, carried) in enumerate(steps_of(head, embedding, tokens, truth, STEPS)):
        losses.append(distillation_loss(logits, truth.logits[:, 1 + step :]))
        if not head.eagle3:
            losses.append(DISTANCE * nn.functional.smooth_l1_loss(carried, truth.states[:, 1 + step :]))
    return torch.stack(losses).sum() / STEPS


@torch.no_grad()
def agreement(head: Head, embedding: Tensor, target: Model, tokens: Tensor) -> dict[str, float]:
    """How often each draft step's favourite is the target's."""
    truth = truth_of(target, tokens, eagle3=head.eagle3)
    best = truth.logits.argmax(-1)
    steps = steps_of(head, embedding, tokens, truth, STEPS)
    return {
        f"step_{step + 1}": (logits.argmax(-1) == best[:, 1 + step :]).float().mean().item()
        for step, (logits, _) in enumerate(steps)
    }


def main() -> None:
    """Train both heads, measure them, write them."""
    chosen = options()
    torch.manual_seed(chosen.seed)
    target = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    embedding = target.get_input_embeddings().weight.detach()
    tokenizer = AutoTokenizer.from_pretrained(TINY).backend_tokenizer
    corpus = load_corpus(chosen.corpus)
    windows = Windows(encode_documents(tokenizer, [document(text) for text in corpus.train]), chosen.seed)
    held_out = Windows(encode_documents(tokenizer, [document(text) for text in corpus.held_out]), chosen.seed)
    sampler = torch.Generator().manual_seed(chosen.seed)
    pool = continuations(target, windows.draw(chosen.pool, POOL_PROMPT), sampler)
    prompts = continue_tokens(target, held_out.draw(32, POOL_PROMPT), POOL_PROMPT)
    journal = Journal(chosen.log, every=20)
    settings = {name: str(value) for name, value in vars(chosen).items()}
    journal.write("start", torch=torch.__version__, corpus_sha256=corpus.sha256, **settings)
    for name, eagle3 in (("tiny-eagle", False), ("tiny-eagle3", True)):
        head = Head(eagle3=eagle3)
        plan = Plan(name, chosen.steps, chosen.rows, chosen.window, chosen.window, PEAK_RATE, WEIGHT_DECAY)
        picker = torch.Generator().manual_seed(chosen.seed)

        def loss_at(_: int, head: Head = head, picker: torch.Generator = picker) -> Tensor:
            start = int(torch.randint(pool.shape[1] - chosen.window + 1, (), generator=picker))
            rows = torch.randint(len(pool), (chosen.rows,), generator=picker)
            picked = pool[rows, start : start + chosen.window]
            text = windows.draw(chosen.rows, chosen.window)
            return (loss_of(head, embedding, target, text) + loss_of(head, embedding, target, picked)) / 2

        def check(head: Head = head) -> dict[str, float]:
            return agreement(head, embedding, target, prompts)

        train(head, plan, loss_at, check, journal)
        round_weights(head)
        journal.write("agreement", model=name, **check())
        folder = chosen.out / name
        folder.mkdir(parents=True, exist_ok=True)
        weights = save(head_weights(head), metadata={"format": "pt"})
        (folder / "model.safetensors").write_bytes(weights)
        write_json(folder / "config.json", head_config(eagle3=eagle3))
        journal.write("written", model=name, weight_bytes=len(weights))


if __name__ == "__main__":
    main()
