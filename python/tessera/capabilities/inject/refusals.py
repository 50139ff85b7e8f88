"""What injection cannot be combined with: refused at start, by name."""

from tessera.refusal import (
    BEFORE_0_5_23,
    NOT_SERVED,
    UNCHECKED,
    VIRTUAL_SLOTS,
    WRONG_BESIDE_STATE,
    Refusal,
    above_one,
    set_later,
)

SWITCH = "--enable-injection"
_HOST = "KV that leaves the server's memory is known outside by token ids alone"
_NARROW = "it takes token ids of 32 bits, and our keys of injected positions have 63"

REFUSALS = (
    *UNCHECKED,
    Refusal("--pp-size", "only the first stage has embeddings", lambda args: args.pp_size > 1),
    Refusal("--enable-pdmux", "a prefill split by layers takes no embeddings"),
    Refusal("--enable-two-batch-overlap", NOT_SERVED),
    Refusal("--enable-attn-tp-input-scattered", "each rank would add the whole embeddings to those of the others"),
    Refusal("--dcp-size", "the rows of one request are spread over ranks", above_one("dcp_size")),
    Refusal("--moe-a2a-backend", NOT_SERVED, lambda args: args.moe_a2a_backend != "none"),
    Refusal("--disaggregation-mode", _HOST, lambda args: args.disaggregation_mode != "null"),
    Refusal("--hicache-storage-backend", _NARROW, versions=BEFORE_0_5_23),
    Refusal("--kv-events-config", _NARROW, versions=BEFORE_0_5_23),
    Refusal("--enable-watermark", _NARROW, set_later("enable_watermark")),
    Refusal("--enable-multi-layer-eagle", NOT_SERVED),
    Refusal("--enable-unified-memory", VIRTUAL_SLOTS),
    Refusal("--is-embedding", "such a server generates nothing"),
    Refusal("--encoder-only", "such a server generates nothing"),
    Refusal(
        "--speculative-algorithm",
        "only EAGLE, EAGLE3, STANDALONE, NGRAM are tested",
        lambda args: args.speculative_algorithm not in (None, "EAGLE", "EAGLE3", "STANDALONE", "NGRAM"),
    ),
    Refusal(
        "--speculative-algorithm NGRAM", _NARROW, lambda args: args.speculative_algorithm == "NGRAM", BEFORE_0_5_23
    ),
)

BESIDE_STATE = WRONG_BESIDE_STATE
"""For models with Mamba or linear-attention state, besides `REFUSALS`."""


ENVIRONMENT = (
    Refusal("SGLANG_EXPERIMENTAL_CPP_RADIX_TREE", "its ids have 32 bits, our keys 63"),
    Refusal("SGLANG_ENABLE_REQUEST_DECOMPRESSION", "what a compressed body grows to has no limit"),
    Refusal("SGLANG_RUST_SERVER", "its requests do not pass our checks"),
)
"""SGLang's variables that are refused if they are set to something but 0."""


def embeddings_ignored(name: str, why: str) -> str:
    """The line with which a model is refused that does not compute from the embeddings put into it.

    Args:
        name: the class of the model.
        why: how that shows.
    """
    return f"{SWITCH} does not support {name}: {why}"
