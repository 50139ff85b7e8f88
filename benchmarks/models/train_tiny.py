#!/usr/bin/env python3
"""Make the tiny models that ship with Tessera's tests.

The first two are Llama models of Python code, trained on the standard library's sources of
the interpreter that runs this script: `tiny` (4 MiB), and `tiny-draft` (1 MiB), a
draft model for speculative decoding that is distilled from `tiny`. With `--moe`:
`tiny-moe` (3.4 MiB), a mixture of experts cut from the `tiny` that is there and
distilled from it on the same text. No download.
"""

import argparse
import importlib.metadata
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

# cuBLAS is deterministic only with a fixed workspace, set before CUDA starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from tiny_training.batches import Windows, encode_documents
from tiny_training.chat import chat_documents
from tiny_training.corpus import Corpus, load_corpus
from tiny_training.distill import continuation_pool, draft_loss
from tiny_training.export import round_weights, write_folder, write_model
from tiny_training.forward import Model, continue_tokens, greedy_choices, logits_of
from tiny_training.journal import Journal
from tiny_training.loop import Plan, train
from tiny_training.measure import acceptance, held_out_loss
from tiny_training.moe import MOE, cut_from, expert_shares, moe_config, moe_loss, moe_weights
from tiny_training.options import arguments
from tiny_training.plot import plot_journal
from tiny_training.shapes import DRAFT, TARGET, new_model
from tiny_training.vocabulary import document, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

EXCHANGES = 2500
PEAK_RATE = 4e-3
#: The draft sees an endless stream of the target's own text: nothing to memorise.
DRAFT_WEIGHT_DECAY = 0.1
#: What was cut from a trained model is changed gently.
MOE_RATE, MOE_WEIGHT_DECAY = 2e-3, 0.1
SAMPLES = [
    "def __init__(self",
    "import os\nimport ",
    "class Node:\n    ",
    "    for name in ",
    "    try:\n        return ",
    'if __name__ == "__main__":\n    ',
    "<|im_start|>user\nWrite close: Close the file.<|im_end|>\n<|im_start|>assistant\n",
]


@dataclass(frozen=True)
class Data:
    """The encoded corpus on the training device; streams are int64 [tokens]."""

    tokenizer: Tokenizer
    train: Tensor
    held_out: Tensor
    bytes_per_token: float


def prepare(corpus: Corpus, device: str, tokenizer: Tokenizer | None = None) -> Data:
    """Encode both sides, with a tokenizer that is trained on the training files unless one is given."""
    tokenizer = tokenizer or train_tokenizer(corpus.train, TARGET.vocabulary)
    documents = [document(text) for text in corpus.train]
    documents += chat_documents(corpus.train, EXCHANGES)
    held_out = encode_documents(tokenizer, [document(t) for t in corpus.held_out])
    return Data(
        tokenizer,
        encode_documents(tokenizer, documents).to(device),
        held_out.to(device),
        corpus.held_out_bytes / held_out.numel(),
    )


def write_head(options: argparse.Namespace, corpus: Corpus, data: Data) -> Journal:
    """Open the log with what is needed to judge and repeat the run."""
    packages = ("torch", "transformers", "tokenizers", "safetensors")
    cuda = options.device == "cuda"
    journal = Journal(options.log, options.every)
    journal.write(
        "start",
        command=shlex.join(["python3", *sys.argv]),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        python=platform.python_version(),
        versions={name: importlib.metadata.version(name) for name in packages},
        device=torch.cuda.get_device_name() if cuda else platform.processor(),
        corpus_files=len(corpus.train) + len(corpus.held_out),
        corpus_bytes=corpus.train_bytes + corpus.held_out_bytes,
        corpus_sha256=corpus.sha256,
        held_out_files=corpus.held_out_names,
        held_out_bytes=corpus.held_out_bytes,
        train_tokens=data.train.numel(),
        held_out_tokens=data.held_out.numel(),
        **({"moe": asdict(MOE)} if options.moe else {"target": asdict(TARGET), "draft": asdict(DRAFT)}),
        seed=options.seed,
    )
    return journal


def train_target(data: Data, options: argparse.Namespace, journal: Journal) -> Model:
    """Train the target on the text; its weights end up rounded to bfloat16."""
    size = (options.rows, options.window, options.long_window)
    plan = Plan("target", options.steps, *size, PEAK_RATE, options.weight_decay)
    model = new_model(TARGET).to(options.device)
    windows = Windows(data.train, options.seed)

    def loss_at(step: int) -> Tensor:
        rows, window = plan.batch_shape(step)
        tokens = windows.draw(rows, window + 1)
        logits = logits_of(model, tokens[:, :-1], mixed=True)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    train(model, plan, loss_at, checker(model, data, options.window), journal)
    round_weights(model)
    return model


def train_draft(target: Model, data: Data, options: argparse.Namespace, journal: Journal) -> Model:
    """Distil the draft from the target; its weights end up rounded to bfloat16."""
    size = (options.rows, options.window, options.long_window)
    plan = Plan("draft", options.draft_steps, *size, PEAK_RATE, DRAFT_WEIGHT_DECAY)
    model = new_model(DRAFT).to(options.device)
    windows = Windows(data.train, options.seed + 1)
    sampler = torch.Generator(options.device).manual_seed(options.seed)
    pool = continuation_pool(target, windows, options.pool, sampler)
    loss_at = draft_loss(model, target, windows, pool, plan, seed=options.seed)
    train(model, plan, loss_at, checker(model, data, options.window), journal)
    round_weights(model)
    return model


def checker(model: Model, data: Data, window: int) -> partial[dict[str, float]]:
    """A call that measures the model's loss on the held-out files."""
    return partial(held_out_loss, model, data.held_out, data.bytes_per_token, window)


def report(target: Model, draft: Model, data: Data, window: int, journal: Journal) -> None:
    """Measure the rounded models; the log's last lines."""
    for name, model in (("target", target), ("draft", draft)):
        journal.write("held_out", model=name, **checker(model, data, window)())
    prompts = Windows(data.held_out, seed=0).draw(256, 128)
    journal.write("acceptance", **acceptance(target, draft, prompts, 128, depth=3))
    for prompt in SAMPLES:
        ids = data.tokenizer.encode(prompt).ids
        tokens = torch.tensor([ids], device=prompts.device)
        for name, model in (("target", target), ("draft", draft)):
            added = continue_tokens(model, tokens, 96)[0, len(ids) :].tolist()
            text = data.tokenizer.decode(added, skip_special_tokens=False)
            journal.write("sample", model=name, prompt=prompt, greedy=text)


def make_moe(options: argparse.Namespace, corpus: Corpus) -> None:
    """Cut the mixture of experts from `tiny`, distil it from `tiny`, write it, measure it."""
    folder = options.out / "tiny"
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(options.device)
    data = prepare(corpus, options.device, Tokenizer.from_file(str(folder / "tokenizer.json")))
    journal = write_head(options, corpus, data)
    model = cut_from(target, MOE).to(options.device)
    plan = Plan("moe", options.steps, options.rows, options.window, options.long_window, MOE_RATE, MOE_WEIGHT_DECAY)
    windows = Windows(data.train, options.seed)
    sampler = torch.Generator(options.device).manual_seed(options.seed)
    pool = continuation_pool(target, windows, options.pool, sampler)
    prompts = Windows(data.held_out, seed=0).draw(32, 128)

    def check() -> dict[str, float]:
        agrees = greedy_choices(model, prompts) == greedy_choices(target, prompts)
        return {"agreement_on_held_out_text": agrees.float().mean().item()}

    journal.write("check", model="moe", step=0, **check())
    train(model, plan, moe_loss(model, target, windows, pool, plan, seed=options.seed), check, journal)
    round_weights(model)
    size = write_folder(options.out / "tiny-moe", moe_weights(model), moe_config(MOE), data.tokenizer)
    journal.write("held_out", model="moe", **checker(model, data, options.window)())
    journal.write("check", model="moe", step=options.steps, **check())
    journal.write("experts", shares_by_layer=expert_shares(model, prompts))
    draft = AutoModelForCausalLM.from_pretrained(options.out / "tiny-draft", dtype=torch.float32).to(options.device)
    journal.write("acceptance", model="tiny-draft", **acceptance(model, draft, prompts, 128, depth=3))
    journal.write("written", folder_bytes={"tiny-moe": size})


def main() -> None:
    """Train both models, or the mixture of experts; write and measure them."""
    options = arguments(__doc__)
    torch.manual_seed(options.seed)
    # Not `warn_only`: with it, flash attention's backward pass stays non-deterministic.
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    corpus = load_corpus(Path(options.corpus))
    if options.moe:
        make_moe(options, corpus)
        return
    data = prepare(corpus, options.device)
    journal = write_head(options, corpus, data)
    target = train_target(data, options, journal)
    sizes = {"tiny": write_model(options.out / "tiny", target, TARGET, data.tokenizer)}
    draft = train_draft(target, data, options, journal)
    sizes["tiny-draft"] = write_model(options.out / "tiny-draft", draft, DRAFT, data.tokenizer)
    report(target, draft, data, options.window, journal)
    journal.write("written", folder_bytes=sizes)
    if options.plot:
        plot_journal(options.log, options.plot)


if __name__ == "__main__":
    main()
