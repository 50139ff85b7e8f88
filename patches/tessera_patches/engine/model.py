"""The model that is served, by its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.environ import envs

from tessera.server_options import ModelFacts
from tessera_patches.core.changes import TemporaryFields

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.sampling.penaltylib.orchestrator import BatchedPenalizerOrchestrator
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from transformers import PretrainedConfig


def facts(model: ModelConfig) -> ModelFacts:
    """The facts of a model by which features serve or refuse it."""
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.model_config import AttentionArch

    text: PretrainedConfig = model.hf_text_config
    return ModelFacts(
        no_full_pool=model.is_hybrid_swa and not getattr(model, "full_attention_layer_ids", None),
        keeps_state=mambaish_config(model) is not None,
        encodes=model.is_encoder_decoder,
        has_windows=bool(model.is_hybrid_swa),
        keeps_latents=model.attention_arch == AttentionArch.MLA,
        has_delta_rule=hasattr(text, "linear_num_value_heads"),
        shares_experts=bool(getattr(text, "shared_expert_intermediate_size", 0)),
    )


def runner_of(scheduler: Scheduler) -> ModelRunner:
    """What runs the model that is served; draft models have others."""
    worker: TpModelWorker = scheduler.tp_worker
    return worker.model_runner


def algorithm_of(runner: ModelRunner) -> SpeculativeAlgorithm:
    """How drafts for its model are made."""
    return runner.spec_algorithm


def is_standalone(runner: ModelRunner) -> bool:
    """Whether the draft model is one by itself (STANDALONE), which reads no states of the target."""
    algorithm: SpeculativeAlgorithm = algorithm_of(runner)
    return bool(algorithm.is_standalone())


def generates(manager: TokenizerManager) -> bool:
    """Whether its model generates tokens."""
    generation: bool = manager.is_generation
    return generation


def is_draft(owner: ModelRunner | KVCacheConfigurator) -> bool:
    """Whether its model drafts for another one."""
    drafts: bool = owner.is_draft_worker
    return drafts


def configuration(
    owner: ModelRunner | Scheduler | TokenizerManager | KVCacheConfigurator,
) -> ModelConfig:
    """SGLang's ``ModelConfig`` of what a process, a worker or a runner serves."""
    return owner.model_config


def hidden_size(owner: ModelRunner | Scheduler | TokenizerManager | KVCacheConfigurator) -> int:
    """H, the width of its model's hidden states."""
    model: ModelConfig = configuration(owner)
    size: int = model.hidden_size
    return size


def vocabulary(owner: ModelRunner | Scheduler | TokenizerManager) -> int:
    """How many token ids its model has."""
    model: ModelConfig = configuration(owner)
    size: int = model.vocab_size
    return size


def logits_width(owner: LogitsProcessor | BatchedPenalizerOrchestrator) -> int:
    """V of the logits ``[n, V]`` that it handles."""
    size: int = owner.vocab_size
    return size


def with_vocabulary(runner: ModelRunner, size: int) -> TemporaryFields:
    """Change how many token ids its model has, in a ``with`` block."""
    return TemporaryFields(with_vocabulary, configuration(runner), vocab_size=size)


def context_length(owner: ModelRunner | TokenizerManager) -> int:
    """How many positions its model has."""
    model: ModelConfig = configuration(owner)
    length: int = model.context_len
    return length


def sliding_window(runner: ModelRunner) -> int | None:
    """How many tokens its layers attend to, in tokens; None or -1 without a window."""
    size: int | None = runner.sliding_window_size
    return size


def has_mrope(runner: ModelRunner) -> bool:
    """Whether a position of its model has three axes: time, height and width (M-RoPE)."""
    model: ModelConfig = configuration(runner)
    three: bool = model.model_is_mrope
    return three


def dtype(owner: ModelRunner | Scheduler | TokenizerManager | KVCacheConfigurator) -> torch.dtype:
    """The dtype of its model's hidden states."""
    model: ModelConfig = configuration(owner)
    kind: torch.dtype = model.dtype
    return kind


def changes_logits(processor: LogitsProcessor) -> bool:
    """Whether its model's logits are more than a product in 16 bits: gathered, changed afterwards, or in float32.

    Since 0.5.23 an option may have them written in float32.
    """
    in_float32 = processor.use_fp32_lm_head or getattr(processor, "use_fp32_lm_head_output", False)
    gathers = processor.do_tensor_parallel_all_gather or processor.do_tensor_parallel_all_gather_dp_attn
    changed = processor.logit_scale, processor.final_logit_softcapping, processor.rl_on_policy_target
    sanitizes = envs.SGLANG_SANITIZE_NAN_LOGITS.get()  # with values that 16 bits may not have
    return bool(in_float32 or gathers or any(one is not None for one in changed) or sanitizes)
