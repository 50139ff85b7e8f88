"""Give a small model the cost of a large one, computing the same function.

Nothing is padded with zeros, for a GPU multiplies zeros with less power and so up to 13 % faster. Instead all is said
several times. With n copies of the hidden vector x side by side:

- An RMSNorm has n copies of its weights: the mean of squares over n copies is that over one.
- A matrix that reads the vector has n copies of its columns divided by n; one that writes it, n copies of its rows.
- Heads: n copies of all (query and key-value heads keep their ratio), and the output projection divides by n.
- MLP: neurons are repeated until the width is reached, and the copies of a neuron share its output.
- Added layers: copies of a layer's weights, with heads and neurons in pairs of opposite sign: what they add cancels.
- Added tokens: copies of the row of a token that is never used.

All divisors are powers of two, so each weight is exact in bfloat16. The order of sums changes, and opposite signs leave
what rounding leaves (about 1e-7 of a summand): in bfloat16 the logits differ as between two batch sizes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tiny_training.shapes import Shape
from tiny_training.vocabulary import PAD_ID
from torch import Tensor

Weights = Callable[[str], Tensor]
"""The narrow model's weights by name."""
Named = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class Widening:
    """From one shape to another.

    Raises:
        ValueError: the second is not reached by these means.
    """

    narrow: Shape
    wide: Shape

    def __post_init__(self) -> None:
        copies = self.copies
        narrow, wide = self.narrow, self.wide
        if copies & (copies - 1) or narrow.hidden * copies != wide.hidden:
            raise ValueError(f"hidden: {wide.hidden} is not {narrow.hidden} times a power of two")
        if (narrow.heads * copies, narrow.kv_heads * copies) != (wide.heads, wide.kv_heads):
            raise ValueError(f"heads: {wide.heads} and {wide.kv_heads}, not {copies} times the narrow model's")
        if narrow.head_dim != wide.head_dim:
            raise ValueError(f"head_dim: {wide.head_dim} is not {narrow.head_dim}")
        if wide.intermediate < narrow.intermediate:
            raise ValueError(f"intermediate: {wide.intermediate} is below {narrow.intermediate}")
        if wide.layers > narrow.layers and (copies < 2 or wide.intermediate % 2):
            raise ValueError("layers: added ones need pairs of heads and of neurons")
        if wide.layers < narrow.layers or wide.vocabulary < narrow.vocabulary:
            raise ValueError("layers, vocabulary: they can only grow")

    @property
    def copies(self) -> int:
        """How often the hidden vector stands beside itself."""
        return max(1, self.wide.hidden // self.narrow.hidden)

    def reads(self, weight: Tensor, parts: int = 1) -> Tensor:
        """[out, parts * narrow] to [out, parts * wide]: each part is a hidden vector of its own."""
        chunks = weight.chunk(parts, 1)
        return torch.cat([chunk.repeat(1, self.copies) / self.copies for chunk in chunks], 1)

    def writes(self, weight: Tensor) -> Tensor:
        """[narrow, ...] to [wide, ...]: the output as often as the hidden vector."""
        return weight.repeat(self.copies, *([1] * (weight.ndim - 1)))

    def signs(self, *, cancel: bool) -> Tensor:
        """The factor of each copy of the heads: [copies]."""
        signs = torch.ones(self.copies)
        if cancel:
            signs[1::2] = -1
        return signs

    def attention(self, name: str, weight: Tensor, *, cancel: bool, parts: int = 1) -> Tensor:
        """One projection of an attention; `cancel` for an added layer, `parts` for the inputs side by side."""
        if name != "o_proj":
            return self.writes(self.reads(weight, parts))
        columns = [weight * sign / self.copies for sign in self.signs(cancel=cancel).to(weight)]
        return self.writes(torch.cat(columns, 1))

    def mlp(self, name: str, weight: Tensor, *, cancel: bool) -> Tensor:
        """One projection of an MLP."""
        places, parts = (cancelling if cancel else shares)(self.narrow.intermediate, self.wide.intermediate)
        if name != "down_proj":
            return self.reads(weight[places])
        return self.writes(weight[:, places] * parts.to(weight))


def shares(count: int, wanted: int) -> tuple[Tensor, Tensor]:
    """Repeat `count` neurons to `wanted`: which one stands at each place, and its part of the output; both [wanted].

    The parts of one neuron are powers of two and add up to 1.
    """
    places, parts = [], []
    for neuron in range(count):
        copies = wanted // count + (neuron < wanted % count)
        split = [1.0]
        while len(split) < copies:
            half = split.pop(0) / 2  # the largest, for the list stays sorted
            split = sorted([*split, half, half], reverse=True)
        places += [neuron] * copies
        parts += split
    return torch.tensor(places), torch.tensor(parts)


def cancelling(count: int, wanted: int) -> tuple[Tensor, Tensor]:
    """The same in pairs whose parts add up to 0."""
    half = torch.arange(wanted // 2) % count
    return half.repeat(2), torch.cat([torch.ones(wanted // 2), -torch.ones(wanted // 2)])


def widened_model(weights: Weights, widening: Widening) -> Named:
    """The wide model's tensors, one at a time: Hugging Face's names, untied output, the dtype of the narrow ones."""
    narrow, wide = widening.narrow, widening.wide
    table = widened_table(weights, widening)
    yield "model.embed_tokens.weight", table
    yield "lm_head.weight", table / widening.copies
    yield "model.norm.weight", widening.writes(weights("model.norm.weight"))
    for number in range(wide.layers):
        source = f"model.layers.{number % narrow.layers}."
        cancel = number >= narrow.layers
        for name, tensor in _layer(weights, source, widening, cancel=cancel):
            yield f"model.layers.{number}.{name}", tensor


def widened_table(weights: Weights, widening: Widening) -> Tensor:
    """The wide embedding, [vocabulary, H]; the output matrix is this divided by `Widening.copies`."""
    table = widening.writes(weights("model.embed_tokens.weight").T).T
    added = table[PAD_ID].expand(widening.wide.vocabulary - widening.narrow.vocabulary, -1)
    return torch.cat([table, added])


def widened_head(weights: Weights, widening: Widening, *, eagle3: bool) -> Named:
    """The same for an EAGLE or EAGLE-3 head, by the names of `heads.head_weights`."""
    layer = "midlayer." if eagle3 else "layers.0."
    yield "fc.weight", widening.writes(widening.reads(weights("fc.weight"), 3 if eagle3 else 2))
    norms = ["post_attention_layernorm"]
    if eagle3:
        yield "norm.weight", widening.writes(weights("norm.weight"))
        norms += ["input_layernorm", "hidden_norm"]
    else:
        yield "fc.bias", widening.writes(weights("fc.bias"))
    for name, tensor in _layer(weights, layer, widening, cancel=False, norms=tuple(norms), parts=2 if eagle3 else 1):
        yield layer + name, tensor


def _layer(
    weights: Weights,
    source: str,
    widening: Widening,
    *,
    cancel: bool,
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    parts: int = 1,
) -> Named:
    for name in norms:
        yield f"{name}.weight", widening.writes(weights(f"{source}{name}.weight"))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        weight = weights(f"{source}self_attn.{name}.weight")
        yield f"self_attn.{name}.weight", widening.attention(name, weight, cancel=cancel, parts=parts)
    for name in ("gate_proj", "up_proj", "down_proj"):
        weight = weights(f"{source}mlp.{name}.weight")
        yield f"mlp.{name}.weight", widening.mlp(name, weight, cancel=cancel)
