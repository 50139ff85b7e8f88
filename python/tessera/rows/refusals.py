"""Server options with which a KV slot would not always hold its token's row: refused at start, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """An option that cannot be combined with ``--enable-return-hidden-states``."""

    option: str
    applies: Callable[[Any], bool]
    why: str


def _set(name: str) -> Callable[[Any], bool]:
    return lambda args: bool(getattr(args, name))


def _above_one(name: str) -> Callable[[Any], bool]:
    return lambda args: (getattr(args, name) or 1) > 1


_HOST = "KV that comes back from the host or from storage comes without its hidden states"
_RANKS = "the rows of one request are spread over ranks"
_RESULTS = "results do not pass where embeddings are attached"

_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")

REFUSALS = (
    Refusal("--enable-hierarchical-cache", _set("enable_hierarchical_cache"), _HOST),
    Refusal("--hicache-storage-backend", _set("hicache_storage_backend"), _HOST),
    Refusal("--enable-lmcache", _set("enable_lmcache"), _HOST),
    Refusal("--enable-flexkv", _set("enable_flexkv"), _HOST),
    Refusal("--enable-hisparse", _set("enable_hisparse"), _HOST),
    Refusal(
        "--disaggregation-mode",
        lambda args: args.disaggregation_mode != "null",
        "the KV of a prompt is computed in another server, and its hidden states stay there",
    ),
    Refusal("--encoder-only", _set("encoder_only"), "such a server generates nothing"),
    Refusal("--pp-size", _above_one("pp_size"), "hidden states live on the last stage, results leave from the first"),
    Refusal("--enable-dp-attention", _set("enable_dp_attention"), _RANKS),
    Refusal("--dp-size", _above_one("dp_size"), "not yet tested: start one server for each replica"),
    Refusal("--dcp-size", _above_one("dcp_size"), _RANKS),
    Refusal("--attn-cp-size", _above_one("attn_cp_size"), _RANKS),
    Refusal("--enable-prefill-cp", _set("enable_prefill_cp"), _RANKS),
    Refusal("--enable-two-batch-overlap", _set("enable_two_batch_overlap"), "a forward's rows come in two halves"),
    Refusal("--enable-pdmux", _set("enable_pdmux"), "a forward is split by layers"),
    Refusal("--dllm-algorithm", _set("dllm_algorithm"), "a diffusion model rewrites tokens in place"),
    Refusal(
        "--speculative-algorithm",
        lambda args: args.speculative_algorithm not in (None, *_ALGORITHMS),
        f"not yet tested, other than {', '.join(_ALGORITHMS)}",
    ),
    Refusal("--enable-multi-layer-eagle", _set("enable_multi_layer_eagle"), "not yet tested"),
    Refusal("--is-embedding", _set("is_embedding"), "the server already returns embeddings of its own"),
    Refusal("--enable-unified-memory", _set("enable_unified_memory"), "KV slots are virtual and move"),
    Refusal("--enable-streaming-session", _set("enable_streaming_session"), "not yet tested: sessions keep slots"),
    Refusal("--radix-cache-backend", _set("radix_cache_backend"), "an unknown cache may move KV"),
    Refusal("--prefill-only-disable-kv-cache", _set("prefill_only_disable_kv_cache"), "tokens get no KV slot"),
    Refusal("--elastic-ep-backend", _set("elastic_ep_backend"), _RANKS),
    Refusal("--tokenizer-worker-num", _above_one("tokenizer_worker_num"), "SGLang loads no plugin in these workers"),
    Refusal("--detokenizer-worker-num", _above_one("detokenizer_worker_num"), "not yet tested"),
    Refusal("--smg-grpc-mode", _set("smg_grpc_mode"), _RESULTS),
    Refusal("--grpc-port", _set("grpc_port"), _RESULTS),
    Refusal("--use-ray", _set("use_ray"), "SGLang loads no plugin in Ray actors"),
)


def refused(args: Any) -> list[str]:
    """One sentence for each option in ``args`` (SGLang's ``ServerArgs``) that rows do not support."""
    return [
        f"{refusal.option} cannot be combined with --enable-return-hidden-states: {refusal.why}"
        for refusal in REFUSALS
        if refusal.applies(args)
    ]


def refused_model(*, is_hybrid_swa: bool, is_hybrid_ssm: bool, is_encoder_decoder: bool) -> str | None:
    """Why a model's KV cache cannot carry rows, or None."""
    reasons = {
        "sliding-window layers with a KV pool of their own": is_hybrid_swa,
        "Mamba or linear-attention state": is_hybrid_ssm,
        "an encoder": is_encoder_decoder,
    }
    for reason, applies in reasons.items():
        if applies:
            return (
                f"--enable-return-hidden-states does not support this model yet: it has {reason}, "
                "so a KV slot is not a token"
            )
    return None
