"""What injection cannot be combined with: refused at start, by name."""

from __future__ import annotations

from typing import Any

from tessera.refusal import Refusal, above_one, is_set, lines, spreads_attention

_HOST = "KV that leaves the server's memory is known outside by token ids alone"
_UNTESTED = "not yet tested"
_MODEL = "--enable-injection does not support this model"

REFUSALS = (
    Refusal("--pp-size", lambda args: args.pp_size > 1, "only the first stage has embeddings"),
    Refusal("--enable-pdmux", is_set("enable_pdmux"), "a prefill split by layers takes no embeddings"),
    Refusal("--enable-two-batch-overlap", is_set("enable_two_batch_overlap"), _UNTESTED),
    Refusal(
        "--enable-attn-tp-input-scattered",
        is_set("enable_attn_tp_input_scattered"),
        "each rank would add the whole embeddings to those of the others",
    ),
    Refusal("--enable-dp-attention", spreads_attention, _UNTESTED),
    Refusal("--dcp-size", above_one("dcp_size"), _UNTESTED),
    Refusal("--attn-cp-size", above_one("attn_cp_size"), _UNTESTED),
    Refusal("--enable-prefill-cp", is_set("enable_prefill_cp"), _UNTESTED),
    Refusal("--moe-a2a-backend", lambda args: args.moe_a2a_backend != "none", _UNTESTED),
    Refusal("--dllm-algorithm", is_set("dllm_algorithm"), "a diffusion model rewrites tokens in place"),
    Refusal("--disaggregation-mode", lambda args: args.disaggregation_mode != "null", _HOST),
    Refusal("--enable-hierarchical-cache", is_set("enable_hierarchical_cache"), _UNTESTED),
    Refusal("--hicache-storage-backend", is_set("hicache_storage_backend"), _HOST),
    Refusal("--enable-lmcache", is_set("enable_lmcache"), _HOST),
    Refusal("--enable-flexkv", is_set("enable_flexkv"), _HOST),
    Refusal("--radix-cache-backend", is_set("radix_cache_backend"), "an unknown cache may drop our keys"),
    Refusal("--kv-events-config", is_set("kv_events_config"), _HOST),
    Refusal("--enable-streaming-session", is_set("enable_streaming_session"), _UNTESTED),
    Refusal("--is-embedding", is_set("is_embedding"), "such a server generates nothing"),
    Refusal("--encoder-only", is_set("encoder_only"), "such a server generates nothing"),
    Refusal(
        "--speculative-algorithm",
        lambda args: args.speculative_algorithm not in (None, "EAGLE", "EAGLE3", "STANDALONE"),
        "only EAGLE, EAGLE3 and STANDALONE are supported: others draft from token ids, or are not yet tested",
    ),
    Refusal(
        "--tokenizer-worker-num",
        above_one("tokenizer_worker_num"),
        "SGLang loads no plugin in these workers",
    ),
    Refusal("--smg-grpc-mode", is_set("smg_grpc_mode"), "its requests do not pass our checks"),
    Refusal("--grpc-port", is_set("grpc_port"), "its requests do not pass our checks"),
    Refusal("--use-ray", is_set("use_ray"), "SGLang loads no plugin in Ray actors"),
)


def refused(args: Any) -> list[str]:
    """One sentence for each option in ``args`` (SGLang's ``ServerArgs``) that injection does not support."""
    return lines(REFUSALS, args, "--enable-injection")


def refused_model(*, is_multimodal: bool) -> str | None:
    """Why a model does not take vectors, by its configuration, or None."""
    if is_multimodal:
        return f"{_MODEL}: a multimodal model computes its embeddings elsewhere and would ignore ours"
    return None


def unproven(name: str, why: str) -> str:
    """The line with which a model is refused that does not compute from the embeddings put into it.

    Args:
        name: the class of the model.
        why: how that shows.
    """
    return f"--enable-injection does not support {name}: {why}"
