"""EAGLE and EAGLE-3 heads: one decoder layer that guesses the target's next tokens from its hidden states.

The shapes and the order of operations are those of SGLang's `LlamaForCausalLMEagle` and `LlamaForCausalLMEagle3`;
embedding and output matrix are the target's own. Papers: arXiv 2401.15077 (EAGLE), 2503.01840 (EAGLE-3).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tiny_training.forward import Model
from tiny_training.shapes import ROPE_THETA, TARGET, Shape, config_of

#: One key-value head: both heads stay below 1 MiB.
HEAD = Shape(hidden=TARGET.hidden, intermediate=128, layers=1, heads=2, kv_heads=1)
#: The layers whose outputs an EAGLE-3 head reads: the first three of four.
AUX_LAYERS = (0, 1, 2)


@dataclass(frozen=True)
class Truth:
    """What the target computes for `tokens` [rows, length]: states [rows, length, features], its own logits."""

    features: Tensor
    states: Tensor
    logits: Tensor


class Head(nn.Module):
    """One head; `eagle3` reads three inner layers of the target instead of its last states."""

    def __init__(self, *, eagle3: bool) -> None:
        super().__init__()
        size, attended, kv_width = HEAD.hidden, HEAD.heads * HEAD.head_dim, HEAD.kv_heads * HEAD.head_dim
        seen = 2 * size if eagle3 else size
        self.eagle3 = eagle3
        self.fc = nn.Linear(size * (len(AUX_LAYERS) if eagle3 else 2), size, bias=not eagle3)
        self.q_proj = nn.Linear(seen, attended, bias=False)
        self.k_proj = nn.Linear(seen, kv_width, bias=False)
        self.v_proj = nn.Linear(seen, kv_width, bias=False)
        self.o_proj = nn.Linear(attended, size, bias=False)
        self.gate_proj = nn.Linear(size, HEAD.intermediate, bias=False)
        self.up_proj = nn.Linear(size, HEAD.intermediate, bias=False)
        self.down_proj = nn.Linear(HEAD.intermediate, size, bias=False)
        names = ["post_attention_layernorm", *(["input_layernorm", "hidden_norm", "norm"] if eagle3 else [])]
        self.norms = nn.ModuleDict({name: nn.RMSNorm(size, eps=1e-5) for name in names})

    def read(self, features: Tensor) -> Tensor:
        """EAGLE-3: the target's inner states [..., 3 * H] as the head carries its own, [..., H]."""
        states: Tensor = self.fc(features) if self.eagle3 else features
        return states

    def forward(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """What the output matrix is applied to, and what the next step reads as `states`; all [rows, length, H].

        At position i stand the embedding of token i+1 and the state of token i.
        """
        if self.eagle3:
            residual = states
            seen = torch.cat([self.norms["input_layernorm"](embedded), self.norms["hidden_norm"](states)], -1)
        else:
            seen = residual = self.fc(torch.cat([embedded, states], -1))
        residual = residual + self._attend(seen)
        normed = self.norms["post_attention_layernorm"](residual)
        carried = residual + self.down_proj(nn.functional.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return (self.norms["norm"](carried) if self.eagle3 else carried), carried

    def _attend(self, seen: Tensor) -> Tensor:
        split = (seen.shape[0], seen.shape[1], -1, HEAD.head_dim)
        query, key, value = (part(seen).view(split).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        attended = nn.functional.scaled_dot_product_attention(
            _rotated(query), _rotated(key), value, is_causal=True, enable_gqa=True
        )
        result: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return result


def _rotated(vectors: Tensor) -> Tensor:
    """Rotary positions 0, 1, ... on [rows, heads, length, D], halves paired as Llama's weights want it."""
    half = vectors.shape[-1] // 2
    angles = torch.arange(vectors.shape[2])[:, None] * ROPE_THETA ** -(torch.arange(half) / half)
    first, second = vectors.split(half, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


@torch.no_grad()
def truth_of(target: Model, tokens: Tensor, *, eagle3: bool) -> Truth:
    """Run the target on `tokens` [rows, length]."""
    output = target(input_ids=tokens, use_cache=False, output_hidden_states=True)
    states = output.hidden_states[-1]
    aux = torch.cat([output.hidden_states[layer + 1] for layer in AUX_LAYERS], -1)
    return Truth(aux if eagle3 else states, states, output.logits)


def steps_of(head: Head, embedding: Tensor, tokens: Tensor, truth: Truth, steps: int) -> list[tuple[Tensor, Tensor]]:
    """`steps` draft steps from every position at once, each `(logits, carried)` [rows, length - 1 - step, ...].

    Step k guesses, at position i, token i+2+k from what step k-1 carried at i-1. Keys of earlier positions are those
    of the same step, not the first one's: close enough to learn from.
    """
    embedded, states = embedding[tokens[:, 1:]], head.read(truth.features[:, :-1])
    taken = []
    for _ in range(steps):
        out, carried = head(embedded, states)
        taken.append((out @ embedding.T, carried))
        embedded, states = embedded[:, 1:], carried[:, :-1]
    return taken


def head_config(*, eagle3: bool) -> dict[str, Any]:
    """`config.json` of a head, as SGLang reads it: the output matrix comes from the target."""
    changed: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle"], "tie_word_embeddings": False}
    if eagle3:
        changed["architectures"] = ["LlamaForCausalLMEagle3"]
        changed |= {"draft_vocab_size": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS)}}
    return config_of(HEAD) | changed


def head_weights(head: Head) -> dict[str, Tensor]:
    """The weights by the names that SGLang looks for, bfloat16."""
    layer = "midlayer." if head.eagle3 else "layers.0."
    prefixes = {"q": "self_attn.", "k": "self_attn.", "v": "self_attn.", "o": "self_attn.", "f": ""}

    def name_of(name: str) -> str:
        name = name.removeprefix("norms.")
        if name.startswith("fc.") or name == "norm.weight":
            return name
        if name.endswith("_proj.weight"):
            return layer + prefixes.get(name[0] if name[1] == "_" else "", "mlp.") + name
        return layer + name

    return {name_of(name): tensor.detach().bfloat16().contiguous() for name, tensor in head.state_dict().items()}
