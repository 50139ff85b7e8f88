"""The mixture-of-experts model: cut out of the dense one, and taught to predict what that predicts.

Weights from nothing would need millions of tokens. Sparse upcycling (arXiv 2212.05055) starts from a dense model's;
here the neurons of its MLP are dealt out to the experts (as in MoEfication, arXiv 2110.01786), for a small file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tiny_training.batches import Windows
from tiny_training.distill import distillation_loss
from tiny_training.forward import Model, logits_of
from tiny_training.loop import Plan
from tiny_training.shapes import TARGET, Shape, config_of

#: The layers of the dense model that are copied.
COPIED_LAYERS = (0, 1, 3)
#: Weight of the load-balancing loss, which keeps every expert in use.
BALANCE = 0.1


@dataclass(frozen=True)
class MoeShape(Shape):
    """A model with `experts` MLPs of `intermediate` neurons in each layer, `chosen` of them for each token."""

    experts: int = 8
    chosen: int = 2


#: 1.7 million parameters: 3.4 MiB in bfloat16, its output matrix included.
MOE = MoeShape(hidden=TARGET.hidden, intermediate=32, layers=len(COPIED_LAYERS), heads=TARGET.heads, kv_heads=2)


def moe_config(shape: MoeShape) -> dict[str, Any]:
    """`config.json` of a Qwen3-MoE model, readable by transformers 4 and 5 and by SGLang."""
    return config_of(shape) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": shape.intermediate,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


@torch.no_grad()
def cut_from(dense: Model, shape: MoeShape) -> Model:
    """A float32 model whose experts share the strongest neurons of the dense model's MLPs, each its own part."""
    settings = moe_config(shape) | {"torch_dtype": "float32", "dtype": "float32"}
    model: Model = Qwen3MoeForCausalLM(Qwen3MoeConfig.from_dict(settings)).float()
    model.model.embed_tokens.weight.copy_(dense.model.embed_tokens.weight)
    model.model.norm.weight.copy_(dense.model.norm.weight)
    for index, layer in zip(COPIED_LAYERS, model.model.layers, strict=True):
        source = dense.model.layers[index]
        for name in ("input_layernorm", "post_attention_layernorm"):
            getattr(layer, name).weight.copy_(getattr(source, name).weight)
        _copy_attention(layer.self_attn, source.self_attn, source.input_layernorm.weight)
        _deal_neurons(layer.mlp.experts, source.mlp, shape)
    return model


def _copy_attention(attention: Model, source: Model, gain: Tensor) -> None:
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        getattr(attention, name).weight.copy_(getattr(source, name).weight)
    # Qwen3 scales queries and keys to length 1 each; their gains give back the length that they have on average.
    for name in ("q", "k"):
        projection = getattr(source, f"{name}_proj").weight * gain
        getattr(attention, f"{name}_norm").weight.fill_(projection.square().sum(1).mean().sqrt())


def _deal_neurons(experts: Model, source: Model, shape: MoeShape) -> None:
    gate, up, down = source.gate_proj.weight, source.up_proj.weight, source.down_proj.weight
    strength = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
    ranked = strength.argsort(descending=True)[: shape.experts * shape.intermediate]
    for expert in range(shape.experts):
        own = ranked[expert :: shape.experts]
        experts.gate_up_proj[expert].copy_(torch.cat([gate[own], up[own]]))
        experts.down_proj[expert].copy_(down[:, own] * shape.chosen)  # the chosen ones are averaged, not summed


def moe_loss(
    model: Model, target: Model, windows: Windows, pool: Tensor, plan: Plan, *, seed: int
) -> Callable[[int], Tensor]:
    """The loss by step: half on windows of the text, half on the target's own continuations."""
    generator = torch.Generator().manual_seed(seed)

    def loss_at(step: int) -> Tensor:
        rows, window = plan.batch_shape(step)
        window = min(window, pool.shape[1]) if step % 2 else window
        picked = pool[torch.randint(len(pool), (rows,), generator=generator), :window]
        tokens = picked if step % 2 else windows.draw(rows, window)
        with torch.no_grad():
            truth = logits_of(target, tokens, mixed=True)
        answer = model(input_ids=tokens, use_cache=False, output_router_logits=True)
        loss: Tensor = distillation_loss(answer.logits.float(), truth) + BALANCE * answer.aux_loss
        return loss

    return loss_at


@torch.inference_mode()
def expert_shares(model: Model, tokens: Tensor) -> list[list[float]]:
    """By layer and expert: the part of all choices that fell on it, for `tokens` [rows, length]."""
    routed = model(input_ids=tokens, use_cache=False, output_router_logits=True).router_logits
    chosen = [logits.topk(model.config.num_experts_per_tok).indices.flatten() for logits in routed]
    counts = [torch.bincount(one, minlength=model.config.num_experts) for one in chosen]
    return [[round(share, 4) for share in (count / count.sum()).tolist()] for count in counts]


def moe_weights(model: Model) -> dict[str, Tensor]:
    """The weights by the names of Qwen3-MoE checkpoints, bfloat16: each expert's matrices apart.

    SGLang's Qwen3-MoE ties nothing: the embedding is there once more as the output matrix.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                for part, matrix in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True):
                    weights[name.replace("gate_up_proj", f"{expert}.{part}.weight")] = matrix
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(tensor):
                weights[name.replace("down_proj", f"{expert}.down_proj.weight")] = matrix
        else:
            weights[name] = tensor
    return {name: tensor.detach().to("cpu", torch.bfloat16).clone() for name, tensor in weights.items()}
