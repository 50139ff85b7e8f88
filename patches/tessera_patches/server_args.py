"""Options: decide what is on, refuse what is not supported, install the rest of the seams."""

from __future__ import annotations

import os
from typing import Any

from tessera import config, cpu_speculation
from tessera.fingerprint.thresholds import Thresholds
from tessera.inject import refusals as injection
from tessera.rows import refusals as rows
from tessera.tilespec import refusals as tilespec
from tessera_patches import apply

_SKIP_EXTEND = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"
"""SGLang's switch: a step that drafts nothing does not run the draft model either. Its KV cache misses those tokens."""


def decide(result: None, args: Any) -> None:
    """AFTER ``ServerArgs.__post_init__``. Ends the process where an option is not supported."""
    with apply.or_refuse():
        config.active = config.Settings.from_server_args(args)
        lines = rows.refused(args) + _refused_environment() if config.active.rows else []
        lines += injection.refused(args) + _refused_beside_injection() if config.active.inject else []
        if config.flags.needs_rows and not config.active.rows:
            lines.append(
                "--toploc-verification needs every row: leave out --return-hidden-states-mode, or set it to full"
            )
        if config.flags.about_embeddings and not config.active.rows:
            lines.append("--embeddings-… options need --enable-return-hidden-states: add it")
        lines += cpu_speculation.refused(args) if config.active.cpu_speculation else []
        lines += tilespec.refused(args) + _set(tilespec.ENVIRONMENT, "--tile-spec") if config.active.tilespec else []
        lines += tilespec.refused_flags(config.flags, args)
        lines = lines or _refused_model(args)
        if lines:
            raise SystemExit("\n".join(map(apply.refusing, lines)))
        if config.flags.toploc_thresholds is not None:
            config.thresholds = Thresholds.load(config.flags.toploc_thresholds)
        if config.active.tilespec:
            os.environ[_SKIP_EXTEND] = "1"
            if tilespec.likeliest_only(args, unwanted=config.flags.tile_spec_no_rejection_sampling) is None:
                args.override("tessera", speculative_use_rejection_sampling=True)
        config.hand_to_children()
        apply.install_main()


def _refused_model(args: Any) -> list[str]:
    """By what the target's configuration says, which SGLang has read by now; its weights may take minutes."""
    model = getattr(args, "model_config", None)
    if model is None:  # SGLang's own placeholder, "dummy", in the place of a path: nothing will be served
        return []
    from sglang.srt.configs.hybrid_arch import mambaish_config

    keeps_state = mambaish_config(model) is not None
    found = [
        rows.refused_model(
            is_hybrid_swa=model.is_hybrid_swa,
            is_hybrid_ssm=keeps_state,
            is_encoder_decoder=model.is_encoder_decoder,
        )
        if config.active.rows
        else None,
        injection.refused_model(is_multimodal=model.is_multimodal) if config.active.inject else None,
        tilespec.refused_model(keeps_state=keeps_state) if config.active.tilespec else None,
    ]
    return [line for line in found if line is not None]


def _refused_environment() -> list[str]:
    return _set({"SGLANG_RUST_SERVER": "it drops our results"}, "--enable-return-hidden-states")


def _refused_beside_injection() -> list[str]:
    refused = {
        "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE": "its ids have 32 bits, our keys 63",
        "SGLANG_ENABLE_REQUEST_DECOMPRESSION": "what a compressed body grows to has no limit",
        "SGLANG_RUST_SERVER": "its requests do not pass our checks",
    }
    return _set(refused, "--enable-injection")


def _set(variables: dict[str, str], feature: str) -> list[str]:
    """One sentence for each of SGLang's variables, with the reason, that is set to something but 0."""
    from sglang.srt.environ import envs

    return [
        f"{name} cannot be combined with {feature}: {why}"
        for name, why in variables.items()
        if (getattr(envs, name).get() or 0) not in (0, -1)
    ]
