"""Measurements on held-out text: bits per byte, and acceptance of the draft."""

import math

import torch
from torch import Tensor, nn

from tiny_training.forward import Model, continue_tokens, greedy_choices, logits_of

ROWS_AT_ONCE = 32
#: A continuation counts as looping if its last `LOOP_TAIL` tokens have a period of
#: at most `LOOP_PERIOD`.
LOOP_TAIL, LOOP_PERIOD = 48, 24


@torch.inference_mode()
def held_out_loss(model: Model, stream: Tensor, bytes_per_token: float, window: int) -> dict[str, float]:
    """Loss over all whole windows of a held-out stream [tokens], side by side.

    Each window starts without context, so the figures are slightly pessimistic.
    """
    rows = (stream.numel() - 1) // window
    inputs = stream[: rows * window].view(rows, window)
    wanted = stream[1 : rows * window + 1].view(rows, window)
    nats = 0.0
    for part, truth in zip(torch.split(inputs, ROWS_AT_ONCE), torch.split(wanted, ROWS_AT_ONCE), strict=True):
        logits = logits_of(model, part, mixed=False).flatten(0, 1)
        nats += nn.functional.cross_entropy(logits, truth.flatten(), reduction="sum").item()
    loss = nats / (rows * window)
    return {
        "nats_per_token": loss,
        "perplexity": math.exp(loss),
        "bits_per_byte": loss / math.log(2) / bytes_per_token,
    }


def mean_accepted(agrees: Tensor, depth: int) -> float:
    """Tokens per verification with `depth` draft steps, the target's own included.

    `agrees` [rows, length] says where the draft's favourite is the target's. After
    accepted guesses both models have seen the same tokens, so this one table
    replays the speculation exactly. From 1 (nothing accepted) to `depth + 1`.
    """
    tokens = verifications = 0
    for row in agrees.tolist():
        place = 0
        while place + depth < len(row):
            guesses = row[place : place + depth]
            accepted = guesses.index(False) if False in guesses else depth
            tokens += accepted + 1
            verifications += 1
            place += accepted + 1
    return tokens / max(1, verifications)


def looping_part(tokens: Tensor) -> float:
    """The part of rows [rows, length] that ends in a short loop."""
    tail = tokens[:, -(LOOP_TAIL + LOOP_PERIOD) :]
    loops = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for period in range(1, LOOP_PERIOD + 1):
        shifted = tail[:, -LOOP_TAIL - period : -period]
        loops |= (tail[:, -LOOP_TAIL:] == shifted).all(1)
    return loops.float().mean().item()


def acceptance(target: Model, draft: Model, prompts: Tensor, count: int, depth: int) -> dict[str, float]:
    """How often the draft foresees the target's greedy tokens.

    On `count` greedy tokens after held-out `prompts` [rows, length]: all of them,
    the first 32 alone (before loops set in), and the held-out text itself.
    """
    length = prompts.shape[1]
    with torch.inference_mode():
        full = continue_tokens(target, prompts, count)
        guesses = greedy_choices(draft, full[:, :-1])[:, length - 1 :]
        agrees = guesses == full[:, length:]
        on_text = greedy_choices(draft, prompts) == greedy_choices(target, prompts)
    return {
        "prompts": len(prompts),
        "prompt_tokens": length,
        "new_tokens": count,
        "greedy_acceptance": agrees.float().mean().item(),
        "greedy_acceptance_first_32": agrees[:, :32].float().mean().item(),
        "agreement_on_held_out_text": on_text.float().mean().item(),
        "draft_steps": depth,
        "mean_accepted_tokens": mean_accepted(agrees, depth),
        "mean_accepted_tokens_first_32": mean_accepted(agrees[:, :32], depth),
        "looping_continuations": looping_part(full[:, length:]),
    }
