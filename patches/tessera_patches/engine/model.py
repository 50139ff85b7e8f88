"""The model that is served, by its configuration, and SGLang's resolved options."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class ModelFacts(NamedTuple):
    """What decides whether a feature serves a model.

    Attributes:
        own_window_pool: sliding-window layers have a KV pool of their own.
        keeps_state: it has Mamba or linear-attention state.
        encodes: it has an encoder.
        multimodal: it takes images or audio.
    """

    own_window_pool: bool
    keeps_state: bool
    encodes: bool
    multimodal: bool


def facts(args: Any) -> ModelFacts | None:
    """Of the model that SGLang's ``ServerArgs`` name; None for a placeholder that nothing serves."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    model = getattr(args, "model_config", None)
    if model is None:
        return None
    return ModelFacts(
        model.is_hybrid_swa, mambaish_config(model) is not None, model.is_encoder_decoder, model.is_multimodal
    )


def configuration(owner: Any) -> Any:
    """SGLang's ``ModelConfig`` of what a ``ModelRunner``, a ``Scheduler`` or a ``TokenizerManager`` serves."""
    return owner.model_config


def hidden_size(owner: Any) -> int:
    """H of its model."""
    size: int = configuration(owner).hidden_size
    return size


def vocabulary(owner: Any) -> int:
    """How many token ids its model has."""
    size: int = configuration(owner).vocab_size
    return size


def dtype(owner: Any) -> torch.dtype:
    """Of its model's states."""
    kind: torch.dtype = configuration(owner).dtype
    return kind
