"""Running the models: logits in training, continuations of prompts."""

from typing import Any

import torch
from torch import Tensor

#: A Hugging Face causal language model; their stubs do not type the call.
Model = Any


def logits_of(model: Model, tokens: Tensor, *, mixed: bool) -> Tensor:
    """Float32 logits [rows, length, vocabulary] for `tokens` [rows, length].

    `mixed` computes in bfloat16 where there is a GPU, from float32 weights.
    """
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=mixed and tokens.is_cuda):
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits.float()


@torch.inference_mode()
def continue_tokens(
    model: Model,
    prompts: Tensor,
    count: int,
    *,
    mixed: bool = False,
    sampler: torch.Generator | None = None,
) -> Tensor:
    """`prompts` [rows, length] followed by `count` tokens: [rows, length + count].

    Greedy, or with a `sampler` drawn at temperature 1. Stop tokens do not stop it,
    so that all rows keep one length.
    """
    pieces, fresh, cache = [prompts], prompts, None
    for _ in range(count):
        with torch.autocast(prompts.device.type, torch.bfloat16, enabled=mixed and prompts.is_cuda):
            answer = model(input_ids=fresh, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        last = answer.logits[:, -1].float()
        if sampler is None:
            fresh = last.argmax(-1, keepdim=True)
        else:
            fresh = torch.multinomial(last.softmax(-1), 1, generator=sampler)
        pieces.append(fresh)
    return torch.cat(pieces, 1)


def greedy_choices(model: Model, tokens: Tensor) -> Tensor:
    """The model's favourite next token after each position: [rows, length]."""
    with torch.inference_mode():
        return logits_of(model, tokens, mixed=False).argmax(-1)
