"""What the draft model learns: to predict the target model, not the text."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tiny_training.batches import Windows
from tiny_training.forward import Model, continue_tokens, logits_of
from tiny_training.loop import Plan

#: Tokens of corpus that a pool row starts with, and tokens the target adds to them.
POOL_PROMPT, POOL_ADDED = 64, 192
POOL_CHUNK = 2048
#: Weight of the target's favourite token beside its whole distribution. Greedy
#: acceptance asks only for the favourite; the distribution teaches more per token.
FAVOURITE = 0.5


def distillation_loss(draft: Tensor, target: Tensor) -> Tensor:
    """Nats per token between logits [rows, length, vocabulary]; a scalar.

    KL(target || draft), plus `FAVOURITE` times the cross-entropy of the target's
    greedy choice.
    """
    guess = draft.flatten(0, 1).log_softmax(-1)
    truth = target.flatten(0, 1).log_softmax(-1)
    divergence = nn.functional.kl_div(guess, truth, reduction="batchmean", log_target=True)
    return divergence + FAVOURITE * nn.functional.nll_loss(guess, truth.argmax(-1))


def continuation_pool(target: Model, windows: Windows, rows: int, sampler: torch.Generator) -> Tensor:
    """Training prompts with the target's own continuations, int64 [rows, 256].

    Half are greedy, which is what acceptance is measured on; half are sampled,
    since greedy ones of a small model soon repeat themselves.
    """
    chunks = []
    for index in tqdm(range(-(-rows // POOL_CHUNK)), desc="pool", unit="chunk"):
        prompts = windows.draw(min(POOL_CHUNK, rows), POOL_PROMPT)
        chosen = sampler if index % 2 else None
        chunks.append(continue_tokens(target, prompts, POOL_ADDED, mixed=True, sampler=chosen))
    # Cloned, since tensors made in inference mode cannot be trained on.
    return torch.cat(chunks).clone()


def draft_loss(
    draft: Model, target: Model, windows: Windows, pool: Tensor, plan: Plan, *, seed: int
) -> Callable[[int], Tensor]:
    """The draft's loss by step: half on corpus windows, half on pool rows."""
    generator = torch.Generator().manual_seed(seed)

    def loss_on(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            truth = logits_of(target, tokens, mixed=True)
        return distillation_loss(logits_of(draft, tokens, mixed=True), truth)

    def loss_at(step: int) -> Tensor:
        rows, window = plan.batch_shape(step)
        count = max(1, rows * window // pool.shape[1] // 2)
        picked = torch.randint(len(pool), (count,), generator=generator)
        text = windows.draw(max(1, rows // 2), window)
        return (loss_on(text) + loss_on(pool[picked.to(pool.device)])) / 2

    return loss_at
