"""Tiny models of random weights, one of each architecture that is tried, made from transformers' configurations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from tessera.versions import installed
from tessera_testing.tiny import TINY

OLD = installed() == "0.5.17"
"""Whether SGLang's own errors are those of this version."""

SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "initializer_range": 0.05,
}
_HEADS: dict[str, Any] = {"head_dim": 64, "num_key_value_heads": 2}
_MLA = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
_ROUTED = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
_SHARED = {**_MOE, "shared_expert_intermediate_size": 64}
_DELTA_RULE = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_chunk_size": 64}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
_DEEPSEEK = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
"""What published configurations say, and transformers' own do not."""
_TWO_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_WINDOWS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    "sliding_window": 24,
}
_IMAGES = {
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 65536},
    "processor_class": "Qwen3VLProcessor",
}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12], "mrope_interleaved": True}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
    "logits_scaling": 8.0,
}


class Architecture(NamedTuple):
    """A model and its reference.

    Attributes:
        kind: of transformers' configuration, the reference's.
        fields: of it, beyond `SHAPE`; of one with a ``text_config`` all.
        served: what SGLang is given instead, with the same weights.
        files: what lies beside the configuration.
        scale: what SGLang's model multiplies embeddings by, those of ids and given ones alike, where the reference's
            does so elsewhere.
        given: what it multiplies given embeddings by, where the reference's embedding layer does that with ids.
        windows_apart: whether windows have a KV pool of their own; newer SGLang then keeps prompts only whole.
        keeps_state: whether a request has a state beside its KV, and prefixes are matched where one is kept.
        options: of its server on a GPU.
        judged_by_logprobs: whether SGLang computes it otherwise than transformers: its rows are then judged by
            SGLang's own log-probabilities, with which the stock server's must agree; how far all are from
            transformers' is only reported.
        computed_as: what transformers' configuration must say instead to compute what SGLang does, if that is known;
            rows are then compared with these, too.
        logprobs_on_a_gpu: whether they are judged so there alone: in bfloat16, a router may choose another expert.
        error: relative error of rows that is allowed: 1e-5, or SGLang's own.
        remark: why it has one of its own.
        absent: why it is not tried without a GPU; "" if it is.
    """

    kind: str
    fields: dict[str, Any]
    served: dict[str, Any] = {}  # noqa: RUF012 - never written to
    files: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - never written to
    scale: float = 1
    given: float = 1
    windows_apart: bool = False
    keeps_state: bool = False
    options: tuple[str, ...] = ()
    judged_by_logprobs: bool = False
    computed_as: dict[str, Any] = {}  # noqa: RUF012 - never written to
    logprobs_on_a_gpu: bool = False
    error: float = 1e-5
    remark: str = ""
    absent: str = ""


ARCHITECTURES = {
    "Llama": Architecture("llama", {}),
    "Llama, tied": Architecture("llama", {"tie_word_embeddings": True}),
    "Mistral": Architecture("mistral", {**_HEADS, "sliding_window": None}),
    "Qwen2": Architecture("qwen2", {}),
    "Qwen3": Architecture("qwen3", _HEADS),
    "Gemma 2": Architecture(
        "gemma2",
        {**_HEADS, "query_pre_attn_scalar": 64, "sliding_window": 24},
        {"hidden_act": "gelu_pytorch_tanh"},
        given=16,
    ),
    "Gemma 3": Architecture(
        "gemma3_text",
        {**_HEADS, **_WINDOWS, "query_pre_attn_scalar": 64, "tie_word_embeddings": True},
        logprobs_on_a_gpu=True,
    ),
    "Phi-3": Architecture("phi3", {}),
    "GLM-4": Architecture("glm4", {**_HEADS, "partial_rotary_factor": 0.5}),
    "OLMo2": Architecture("olmo2", {}),
    "Granite 3": Architecture("granite", _GRANITE),
    # Multiplies by 12 only the embeddings that it makes itself.
    "Granite 4": Architecture(
        "granitemoehybrid",
        {
            **_GRANITE,
            "layer_types": ["attention"] * 2,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 256,
            "position_embedding_type": "rope",
        },
        error=0.1 if OLD else 1e-5,
        remark="SGLang's: its log-probabilities are off, too" if OLD else "",
    ),
    # Has no get_input_embeddings; its head reads rows / 4.
    "MiniCPM": Architecture(
        "llama",
        {},
        {"architectures": ["MiniCPMForCausalLM"], "scale_emb": 12, "scale_depth": 2**0.5, "dim_model_base": 64},
        scale=12,
    ),
    # Its get_input_embeddings takes the ids.
    "MiMo": Architecture("qwen2", {}, {"architectures": ["MiMoForCausalLM"]}),
    "Mixtral": Architecture("mixtral", {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen2-MoE": Architecture("qwen2_moe", _SHARED),
    "Qwen3-MoE": Architecture("qwen3_moe", {**_MOE, **_HEADS}),
    "GPT-OSS": Architecture(
        "gpt_oss",
        {**_WINDOWS, **_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
        {"dtype": "bfloat16"},
        windows_apart=True,
        judged_by_logprobs=True,
        absent="SGLang's CPU engine has no attention with sinks",
    ),
    "DeepSeek-V2": Architecture(
        "deepseek_v2",
        {
            **_MLA,
            **_ROUTED,
            "topk_method": "group_limited_greedy",
            "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
        {"moe_layer_freq": 1, "scoring_func": "softmax", "rope_interleave": True},
        absent="transformers' own code of it fails" if OLD else "",
    ),
    # Its KV pool holds latents, beside a mixture of experts.
    "DeepSeek-V3": Architecture(
        "deepseek_v3",
        {**_MLA, **_ROUTED, "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        _DEEPSEEK,
    ),
    "GLM-4.7-Flash": Architecture("glm4_moe_lite", {**_MLA, **_ROUTED, "n_group": 1}, _DEEPSEEK),
    "GLM-4-MoE": Architecture("glm4_moe", {**_HEADS, **_ROUTED, "n_group": 1, "partial_rotary_factor": 0.5}),
    "Llama 4": Architecture(
        "llama4_text",
        {**_HEADS, "num_local_experts": 4, "intermediate_size_mlp": 256},
        judged_by_logprobs=True,
        absent="SGLang's CPU engine does not start with it",
    ),
    "Cohere2": Architecture(
        "cohere2",
        {**_HEADS, **_WINDOWS, "tie_word_embeddings": True},
        judged_by_logprobs=True,
        computed_as={"sliding_window": 25},
        remark="to transformers with a window of 25 tokens, where SGLang was given 24",
    ),
    "Mellum": Architecture(
        "mellum",
        {**_WINDOWS, **_MOE, "head_dim": 64, "rope_parameters": _TWO_ROPES},
        windows_apart=True,
        logprobs_on_a_gpu=True,
    ),
    "Qwen3-Next": Architecture(
        "qwen3_next",
        # All experts for each token: one that is nearly as good as another would change rows much in bfloat16.
        {**_HEADS, **_SHARED, **_DELTA_RULE, "num_experts": 4, "num_experts_per_tok": 4},
        {"full_attention_interval": 4},
        keeps_state=True,
    ),
    "Qwen3.5": Architecture(
        "qwen3_5_text",
        {**_HEADS, **_DELTA_RULE},
        {"full_attention_interval": 4},
        keeps_state=True,
    ),
    # Images, and text as it is here: its positions have three numbers.
    "Qwen3-VL": Architecture(
        "qwen3_vl",
        {
            "text_config": {**SHAPE, **_HEADS, "model_type": "qwen3_vl_text", "rope_parameters": _MROPE},
            "vision_config": {
                "depth": 2,
                "hidden_size": 64,
                "num_heads": 2,
                "intermediate_size": 64,
                "out_hidden_size": 256,
                "deepstack_visual_indexes": [0],
                "num_position_embeddings": 16,
            },
            "image_token_id": 1000,
            "video_token_id": 1001,
            "vision_start_token_id": 1002,
            "vision_end_token_id": 1003,
            "tie_word_embeddings": False,
        },
        files={
            "preprocessor_config.json": {**_IMAGES, "image_processor_type": "Qwen2VLImageProcessorFast"},
            "video_preprocessor_config.json": {**_IMAGES, "video_processor_type": "Qwen3VLVideoProcessor"},
        },
        remark="text alone",
    ),
    "Falcon-H1": Architecture(
        "falcon_h1",
        {**_HEADS, **_MAMBA2, "mamba_d_ssm": 512},
        keeps_state=True,
        # SGLang 0.5.23 keeps its Mamba mixers in the graph of a prefill, with the lengths of another prompt.
        options=("--cuda-graph-backend-prefill=disabled",),
        remark="without prefill graphs, which make SGLang's own log-probabilities wrong",
        absent="SGLang has Mamba's kernels for GPUs alone",
    ),
    "Granite 4 H": Architecture(
        "granitemoehybrid",
        {
            **_GRANITE,
            **_MAMBA2,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 256,
        },
        keeps_state=True,
        absent="SGLang has Mamba's kernels for GPUs alone",
    ),
}

WITH_ADAPTERS = ("Llama", "Qwen3-MoE")
"""Those that are tried with LoRA adapters too: one dense model, one mixture of experts."""


def with_adapter(name: str) -> str:
    """What one of `WITH_ADAPTERS` is called then."""
    return f"{name}, LoRA"


def on_a_gpu(name: str) -> str:
    """What the line of one that was tried on a GPU is called in docs/reference/models.json."""
    return f"{name}, GPU"


def made(folder: Path, kind: str, /, **fields: Any) -> Path:
    """A model of random weights, with the tiny model's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.manual_seed(1)
    nested = "text_config" in fields
    config = AutoConfig.for_model(kind, **fields if nested else SHAPE | fields)
    model = (AutoModelForImageTextToText if nested else AutoModelForCausalLM).from_config(config).float()
    model.save_pretrained(folder)
    for file in TINY.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def make(folder: Path, name: str) -> tuple[Path, Path]:
    """The folders of one of `ARCHITECTURES` as SGLang is given it, and of its reference."""
    architecture = ARCHITECTURES[name]
    reference = made(folder / "reference", architecture.kind, **architecture.fields)
    for file, content in architecture.files.items():
        (reference / file).write_text(json.dumps(content))
    if not architecture.served:
        return reference, reference
    return configured(reference, folder / "served", architecture.served), reference


def configured(model: Path, folder: Path, fields: dict[str, Any]) -> Path:
    """The same weights in another folder, with other fields in their configuration."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder
