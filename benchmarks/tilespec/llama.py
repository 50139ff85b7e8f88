"""A Llama in plain torch, small enough that `torch.compile` takes it whole.

Its weights have Hugging Face's names, and `tests/benchmarks` compares it with theirs. It exists because the heads need
inner states, and because a graph without breaks trains about twice as fast.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tiny_training.shapes import ROPE_THETA, Shape
from torch import Tensor, nn

EPSILON = 1e-5
INITIAL_SPREAD = 0.02


class Norm(nn.Module):
    """RMSNorm, computed in float32 whatever the activations are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as `x` [..., size]."""
        wide = x.float()
        normed: Tensor = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weight
        return normed.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped key-value heads.

    `seen` is the width of its input where that is not the model's (an EAGLE-3 head reads two vectors side by side).
    """

    def __init__(self, shape: Shape, seen: int | None = None) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        inner, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(seen or shape.hidden, inner, bias=False)
        self.k_proj = nn.Linear(seen or shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(seen or shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden, bias=False)

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of `x` [rows, length, seen], each [rows, heads or kv_heads, length, D]."""
        split = (x.shape[0], x.shape[1], -1, self.head_dim)
        query, key, value = (part(x).view(split).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        return rotate(query, rotation), rotate(key, rotation), value

    def join(self, attended: Tensor) -> Tensor:
        """From [rows, heads, length, D] to the model's width: [rows, length, H]."""
        output: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return output

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Attend from every token of `x` [rows, length, H] to those up to it."""
        query, key, value = self.project(x, rotation)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        return self.join(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x` [..., H]."""
        result: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden)
        self.post_attention_layernorm = Norm(shape.hidden)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Same shape as `x` [rows, length, H]."""
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        added: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return added


class States(NamedTuple):
    """`last` [rows, length, H], after the final norm; `inner` [rows, length, layers asked for * H], before any."""

    last: Tensor
    inner: Tensor


class Body(nn.Module):
    """Embedding, layers and final norm, under the names that Hugging Face gives them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)


class Llama(nn.Module):
    """A decoder with tied embeddings; float32 weights, in Hugging Face's initialisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.apply(draw_weights)

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, H]: the input's and the output's."""
        return self.model.embed_tokens.weight

    def forward(self, tokens: Tensor, inner_layers: Sequence[int] = ()) -> States:
        """The states of `tokens` [rows, length]; `inner_layers` counts from 0 and means a layer's output."""
        x = self.model.embed_tokens(tokens)
        rotation = rotations(tokens.shape[1], self.shape.head_dim, tokens.device)
        outputs = []
        for layer in self.model.layers:
            x = layer(x, rotation)
            outputs.append(x)
        inner = [outputs[number] for number in inner_layers]
        return States(self.model.norm(x), torch.cat(inner, -1) if inner else x[..., :0])

    def logits(self, states: Tensor) -> Tensor:
        """[..., vocabulary] for `states` [..., H]."""
        return nn.functional.linear(states, self.embedding)


def draw_weights(module: nn.Module) -> None:
    """Initialise one module as Llama does."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_SPREAD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def rotations(length: int, head_dim: int, device: torch.device, start: int = 0) -> Tensor:
    """Cosines and sines of positions `start` and up: float32 [2, length, head_dim / 2]."""
    places = torch.arange(start, start + length, device=device, dtype=torch.float32)
    rates = ROPE_THETA ** -(torch.arange(head_dim // 2, device=device, dtype=torch.float32) / (head_dim // 2))
    angles = places[:, None] * rates
    return torch.stack([angles.cos(), angles.sin()])


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Turn `vectors` [rows, heads, length, D], first half against second, as Llama's weights want it."""
    first, second = vectors.float().chunk(2, -1)
    cosine, sine = rotation
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(vectors.dtype)
