"""Server options with which a KV slot would not always hold its token's row: refused at start, by name."""

from tessera.refusal import (
    BEFORE_0_5_23,
    NOT_SERVED,
    UNCHECKED,
    VIRTUAL_SLOTS,
    WRONG_BESIDE_STATE,
    Refusal,
    above_one,
    set_later,
    spreads_attention,
)

SWITCH = "--enable-return-hidden-states"
_STORAGE = "KV that comes back from storage comes without its hidden states"
_PREFILL = "the KV of a prompt is computed in another server, and its hidden states stay there"
_RANKS = "the rows of one request are spread over ranks"
_EXPERTS = (
    "not tested, for its libraries were not there: leave it out, --ep-size alone spreads the experts over ranks too"
)
_ROUNDED = "rows would depend on what was cached, for kept states are rounded"
_AUXILIARY = "return_hidden_states would mean states of other layers"

_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")

REFUSALS = (
    *UNCHECKED,
    Refusal("--hicache-storage-backend", _STORAGE),
    Refusal(
        "--disaggregation-mode",
        _PREFILL,
        lambda args: args.disaggregation_mode != "null",
    ),
    Refusal("--encoder-only", "such a server generates nothing"),
    Refusal(
        "--pp-size with --speculative-algorithm",
        NOT_SERVED,
        lambda args: above_one("pp_size")(args) and bool(args.speculative_algorithm),
        BEFORE_0_5_23,
    ),
    Refusal(
        "--enable-dp-attention with --speculative-algorithm",
        NOT_SERVED,
        lambda args: spreads_attention(args) and bool(args.speculative_algorithm),
    ),
    Refusal("--dcp-size", _RANKS, above_one("dcp_size")),
    Refusal("--enable-two-batch-overlap", "a forward's rows come in two halves"),
    Refusal("--enable-pdmux", "a forward is split by layers"),
    Refusal(
        "--speculative-algorithm",
        f"only {', '.join(_ALGORITHMS)} are tested",
        lambda args: args.speculative_algorithm not in (None, *_ALGORITHMS),
    ),
    Refusal("--enable-multi-layer-eagle", NOT_SERVED),
    Refusal("--is-embedding", "the server already returns embeddings of its own"),
    Refusal("--enable-unified-memory", VIRTUAL_SLOTS),
    Refusal("--moe-a2a-backend", _EXPERTS, lambda args: args.moe_a2a_backend != "none"),
    Refusal("--enable-return-aux-hidden-states", _AUXILIARY, set_later("enable_return_aux_hidden_states")),
)

BESIDE_STATE = (
    *WRONG_BESIDE_STATE,
    Refusal("--enable-linear-replayssm-spec", "rows are further from the model's than without it"),
    Refusal("--enable-int8-mamba-checkpoint", _ROUNDED),
    Refusal("--enable-mamba-cache-stochastic-rounding", "states are rounded by chance, each time in another way"),
)
"""For models with Mamba or linear-attention state, besides `REFUSALS`."""

ENVIRONMENT = (Refusal("SGLANG_RUST_SERVER", "it drops our results"),)
"""SGLang's variables that are refused if they are set to something but 0."""


def refused_model(*, no_full_pool: bool, is_encoder_decoder: bool) -> str | None:
    """Why a model's KV cache cannot carry rows, or None."""
    reasons = {
        "no layer that attends to all tokens, so a KV slot is not a token": no_full_pool,
        "an encoder, so a KV slot is not a token": is_encoder_decoder,
    }
    for reason, applies in reasons.items():
        if applies:
            return f"{SWITCH} does not support this model yet: it has {reason}"
    return None
