"""Server options with which a KV slot would not always hold its token's row: refused at start, by name."""

from __future__ import annotations

from typing import Any

from tessera.refusal import Refusal, above_one, is_set, lines, spreads_attention

_HOST = "KV that comes back from the host or from storage comes without its hidden states"
_RANKS = "the rows of one request are spread over ranks"
_EXPERTS = "not yet tested: leave it out, --ep-size alone spreads the experts over ranks too"
_RESULTS = "results do not pass where embeddings are attached"

_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")

REFUSALS = (
    Refusal("--enable-hierarchical-cache", is_set("enable_hierarchical_cache"), _HOST),
    Refusal("--hicache-storage-backend", is_set("hicache_storage_backend"), _HOST),
    Refusal("--enable-lmcache", is_set("enable_lmcache"), _HOST),
    Refusal("--enable-flexkv", is_set("enable_flexkv"), _HOST),
    Refusal("--enable-hisparse", is_set("enable_hisparse"), _HOST),
    Refusal(
        "--disaggregation-mode",
        lambda args: args.disaggregation_mode != "null",
        "the KV of a prompt is computed in another server, and its hidden states stay there",
    ),
    Refusal("--encoder-only", is_set("encoder_only"), "such a server generates nothing"),
    Refusal("--pp-size", above_one("pp_size"), "hidden states live on the last stage, results leave from the first"),
    Refusal("--enable-dp-attention", spreads_attention, _RANKS),
    Refusal("--dcp-size", above_one("dcp_size"), _RANKS),
    Refusal("--attn-cp-size", above_one("attn_cp_size"), _RANKS),
    Refusal("--enable-prefill-cp", is_set("enable_prefill_cp"), _RANKS),
    Refusal("--enable-two-batch-overlap", is_set("enable_two_batch_overlap"), "a forward's rows come in two halves"),
    Refusal("--enable-pdmux", is_set("enable_pdmux"), "a forward is split by layers"),
    Refusal("--dllm-algorithm", is_set("dllm_algorithm"), "a diffusion model rewrites tokens in place"),
    Refusal(
        "--speculative-algorithm",
        lambda args: args.speculative_algorithm not in (None, *_ALGORITHMS),
        f"not yet tested, other than {', '.join(_ALGORITHMS)}",
    ),
    Refusal("--enable-multi-layer-eagle", is_set("enable_multi_layer_eagle"), "not yet tested"),
    Refusal("--is-embedding", is_set("is_embedding"), "the server already returns embeddings of its own"),
    Refusal("--enable-unified-memory", is_set("enable_unified_memory"), "KV slots are virtual and move"),
    Refusal("--enable-streaming-session", is_set("enable_streaming_session"), "not yet tested: sessions keep slots"),
    Refusal("--radix-cache-backend", is_set("radix_cache_backend"), "an unknown cache may move KV"),
    Refusal("--prefill-only-disable-kv-cache", is_set("prefill_only_disable_kv_cache"), "tokens get no KV slot"),
    Refusal("--moe-a2a-backend", lambda args: args.moe_a2a_backend != "none", _EXPERTS),
    Refusal("--elastic-ep-backend", is_set("elastic_ep_backend"), _RANKS),
    Refusal("--tokenizer-worker-num", above_one("tokenizer_worker_num"), "SGLang loads no plugin in these workers"),
    Refusal("--detokenizer-worker-num", above_one("detokenizer_worker_num"), "not yet tested"),
    Refusal("--smg-grpc-mode", is_set("smg_grpc_mode"), _RESULTS),
    Refusal("--grpc-port", is_set("grpc_port"), _RESULTS),
    Refusal("--use-ray", is_set("use_ray"), "SGLang loads no plugin in Ray actors"),
)


def refused(args: Any) -> list[str]:
    """One sentence for each option in ``args`` (SGLang's ``ServerArgs``) that rows do not support."""
    return lines(REFUSALS, args, "--enable-return-hidden-states")


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
