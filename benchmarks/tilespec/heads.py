"""EAGLE and EAGLE-3 heads in the layout that SGLang loads: one decoder layer that reads the target's states.

An EAGLE head (arXiv 2401.15077) joins the embedding of token i+1 to the target's last state of token i. An EAGLE-3 head
(arXiv 2503.01840) joins it to three inner states instead. Embedding and output matrix are the target's own, or rows of
the latter.
"""

from typing import Any, NamedTuple

import torch
from tiny_training.shapes import Shape, config_of
from torch import Tensor, nn

from tilespec.llama import Attention, Mlp, Norm, draw_weights, rotations

INNER = 3
"""How many of the target's inner layers an EAGLE-3 head reads."""


class Step(NamedTuple):
    """One step of every chain, both [rows, chains, H]: what the output matrix reads, and what the next step reads."""

    out: Tensor
    carried: Tensor


class Head(nn.Module):
    """One head; `eagle3` chooses the kind."""

    def __init__(self, shape: Shape, *, eagle3: bool) -> None:
        super().__init__()
        self.shape, self.eagle3 = shape, eagle3
        self.fc = nn.Linear(shape.hidden * (INNER if eagle3 else 2), shape.hidden, bias=not eagle3)
        self.self_attn = Attention(shape, 2 * shape.hidden if eagle3 else None)
        self.mlp = Mlp(shape)
        self.post_attention_layernorm = Norm(shape.hidden)
        if eagle3:
            self.input_layernorm = Norm(shape.hidden)
            self.hidden_norm = Norm(shape.hidden)
            self.norm = Norm(shape.hidden)
        self.apply(draw_weights)

    def chains(self, embedding: Tensor, tokens: Tensor, features: Tensor, steps: int) -> list[Step]:
        """Draft `steps` tokens from every position at once, as if each guess were right.

        Chain b starts with the features of token b and the embedding of token b+1, and guesses tokens b+2, b+3, ... As
        in serving, a step sees the first step of all chains up to its own, and the earlier steps of its own.

        Args:
            embedding: the target's [vocabulary, H].
            tokens: [rows, length]; there are `length - steps` chains.
            features: [rows, length, H] for EAGLE, [rows, length, 3 * H] for EAGLE-3.
            steps: tokens in a chain.
        """
        count = tokens.shape[1] - steps
        states = features[:, :count]
        if self.eagle3:
            states = self.fc(states)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        taken = []
        for step in range(steps):
            rotation = rotations(count, self.shape.head_dim, tokens.device, start=step)
            embedded = nn.functional.embedding(tokens[:, 1 + step : 1 + step + count], embedding)
            taken.append(self._step(embedded, states, rotation, (keys, values)))
            states = taken[-1].carried
        return taken

    def _step(
        self, embedded: Tensor, states: Tensor, rotation: Tensor, cache: tuple[list[Tensor], list[Tensor]]
    ) -> Step:
        if self.eagle3:
            residual = states
            seen = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], -1)
        else:
            seen = residual = self.fc(torch.cat([embedded, states.to(embedded.dtype)], -1))
        query, key, value = self.self_attn.project(seen, rotation)
        group = query.shape[1] // key.shape[1]
        keys, values = cache
        keys.append(key.repeat_interleave(group, 1))
        values.append(value.repeat_interleave(group, 1))
        x = residual + self.self_attn.join(attend_chains(query, keys, values))
        x = x + self.mlp(self.post_attention_layernorm(x))
        return Step(self.norm(x) if self.eagle3 else x, x)


def attend_chains(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of one step of all chains: to first steps causally, to later steps of the same chain alone.

    `query`, each key and each value are [rows, heads, chains, D]; so is the result.
    """
    scale = query.shape[-1] ** -0.5
    count = query.shape[2]
    future = torch.ones(count, count, dtype=torch.bool, device=query.device).triu(1)
    first = (query @ keys[0].transpose(2, 3)).float().masked_fill(future, float("-inf"))
    own = [(query * key).float().sum(-1, keepdim=True) for key in keys[1:]]
    weights = (torch.cat([first, *own], -1) * scale).softmax(-1).to(query.dtype)
    attended: Tensor = weights[..., :count] @ values[0]
    for number, value in enumerate(values[1:]):
        attended = attended + weights[..., count + number, None] * value
    return attended


def head_config(
    shape: Shape, *, eagle3: bool, inner_layers: tuple[int, ...], known: int | None = None
) -> dict[str, Any]:
    """`config.json`: states of `inner_layers` come from the target, and without `known` tokens the output matrix."""
    changed: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle"], "tie_word_embeddings": False}
    if eagle3:
        changed["architectures"] = ["LlamaForCausalLMEagle3"]
        changed |= {"draft_vocab_size": known, "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(inner_layers)}}
    return config_of(shape) | changed


def head_weights(head: Head) -> dict[str, Tensor]:
    """The weights by the names that SGLang looks for, on the CPU, bfloat16."""
    outside = ("fc.", "norm.")
    layer = "midlayer." if head.eagle3 else "layers.0."
    return {
        name if name.startswith(outside) else layer + name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in head.state_dict().items()
    }


def head_from_weights(shape: Shape, weights: dict[str, Tensor], *, eagle3: bool) -> Head:
    """A head from what `head_weights` returned, float32."""
    head = Head(shape, eagle3=eagle3)
    layer = "midlayer." if eagle3 else "layers.0."
    head.load_state_dict({name.removeprefix(layer): weight.float() for name, weight in weights.items()})
    return head
