"""What ``--tile-spec`` cannot be combined with: refused at start, by name."""

from tessera.flags import Flags
from tessera.refusal import (
    BEFORE_0_5_23,
    NOT_SERVED,
    UNCHECKED,
    VIRTUAL_SLOTS,
    Refusal,
    above_one,
    lines,
    set_later,
    spreads_attention,
)
from tessera.server_options import ServerOptions

ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")
"""Drafts that come one token at a time from a model, each with a probability. NGRAM's have none, and its worker has no
stage at which their number could be chosen."""
_RANKS = "ranks have batches of their own"
_WITHOUT_DRAFTS = "SGLang captures them without a draft model alone"
_GENERATES_NOTHING = "such a server generates nothing"


def _trees(args: ServerOptions) -> bool:
    return (args.speculative_eagle_topk or 1) > 1


def _most_nodes(args: ServerOptions) -> int:
    """Candidates of a whole draft: the first step has one group of them, each other one for each branch."""
    topk: int = args.speculative_eagle_topk
    steps: int = args.speculative_num_steps
    return topk + (steps - 1) * topk * topk


def _drafts_with_fa3(args: ServerOptions) -> bool:
    """The draft has the attention of prefills, where it has none of its own."""
    return (args.speculative_draft_attention_backend or args.attention_backends[0]) == "fa3"


REFUSALS = (
    *UNCHECKED,
    Refusal(
        "--speculative-num-draft-tokens",
        "trees of so few steps and branches have fewer nodes",
        lambda args: _trees(args) and args.speculative_num_draft_tokens - 1 > _most_nodes(args),
    ),
    Refusal("--speculative-adaptive", "--tile-spec takes its place"),
    Refusal("--enable-deterministic-inference", "what is verified depends on the load"),
    Refusal("--enable-multi-layer-eagle", "its worker cannot change the number of steps"),
    Refusal(
        "--speculative-draft-attention-backend fa3",
        "SGLang has no CUDA graphs of its draft-extends: take --speculative-draft-attention-backend triton",
        _drafts_with_fa3,
        BEFORE_0_5_23,
    ),
    Refusal("--pp-size above 1", "of several stages only the last one drafts", above_one("pp_size")),
    Refusal("--dcp-size above 1", NOT_SERVED, above_one("dcp_size")),
    Refusal("--moe-a2a-backend", NOT_SERVED, lambda args: args.moe_a2a_backend != "none"),
    Refusal(
        "--speculative-moe-a2a-backend",
        NOT_SERVED,
        lambda args: args.speculative_moe_a2a_backend not in (None, "none"),
    ),
    Refusal("--enable-dp-attention", _RANKS, spreads_attention),
    Refusal("--enable-two-batch-overlap", "it splits the batch that is sized"),
    Refusal("--disaggregation-mode", NOT_SERVED, lambda args: args.disaggregation_mode != "null"),
    Refusal("--enable-pdmux", "it keeps attention backends of its own"),
    Refusal("--enable-unified-memory", VIRTUAL_SLOTS),
    Refusal("--enable-attn-tp-input-scattered", NOT_SERVED),
    Refusal("--is-embedding", _GENERATES_NOTHING),
    Refusal("--encoder-only", _GENERATES_NOTHING),
    Refusal("--enable-return-aux-hidden-states", _WITHOUT_DRAFTS, set_later("enable_return_aux_hidden_states")),
    Refusal("--enable-lora", "SGLang has no ragged graphs with adapters"),
    Refusal("--disable-cuda-graph-padding", "a ragged batch is padded to the size of its graph"),
    Refusal("--debug-cuda-graph", "costs are measured on whole graphs"),
    Refusal("--enable-watermark", "--tile-spec accepts tokens itself, and marks none", set_later("enable_watermark")),
    Refusal(
        "--speculative-use-block-verification",
        "--tile-spec accepts tokens itself",
        set_later("speculative_use_block_verification"),
    ),
)

ENVIRONMENT = (
    Refusal(
        "SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
        "it prepares a verification before its draft is known",
        versions=BEFORE_0_5_23,
    ),
    Refusal("SGLANG_SIMULATE_ACC_LEN", "--tile-spec accepts tokens itself, and simulates nothing"),
    Refusal("SGLANG_ENABLE_METADATA_GLUE_GRAPH", "it replays the offsets of another verification of as many requests"),
)
"""SGLang's own switches, by the name of the variable."""


def refused(args: ServerOptions) -> list[str]:
    """One sentence for each option in ``args`` that does not go with ``--tile-spec``."""
    if args.speculative_algorithm not in ALGORITHMS:
        found = args.speculative_algorithm or "nothing"
        return [f"--tile-spec needs --speculative-algorithm {', '.join(ALGORITHMS)}; got {found}"]
    return lines(REFUSALS, args, "--tile-spec")


def refused_flags(flags: Flags, args: ServerOptions) -> list[str]:
    """One sentence for each of our options that needs what the others do not give."""
    found = []
    if flags.tile_spec_trace and not flags.tile_spec:
        found.append("--tile-spec-trace records what --tile-spec chooses: add it")
    if flags.tile_spec_trace and args.dp_size > 1:
        found.append("--tile-spec-trace records one scheduler, and --dp-size above 1 starts several")
    if flags.tile_spec_no_rejection_sampling and not flags.tile_spec:
        found.append("--tile-spec-no-rejection-sampling says how --tile-spec drafts: add it")
    if flags.tile_spec_no_rejection_sampling and args.speculative_use_rejection_sampling:
        found.append("--tile-spec-no-rejection-sampling contradicts --speculative-use-rejection-sampling")
    return found


def why_no_rejection_sampling(args: ServerOptions, *, unwanted: bool) -> str | None:
    """Why drafts are their likeliest tokens; None where they are sampled, and accepted by rejection sampling.

    Args:
        args: with an algorithm of `ALGORITHMS`.
        unwanted: whether the operator wants no rejection sampling.
    """
    if unwanted:
        return "--tile-spec-no-rejection-sampling"
    if args.speculative_algorithm not in ("EAGLE", "EAGLE3"):
        return f"SGLang samples no drafts of {args.speculative_algorithm}"
    if _trees(args):
        return "SGLang samples no trees (--speculative-eagle-topk above 1)"
    if args.speculative_accept_threshold_single != 1 or args.speculative_accept_threshold_acc != 1:
        return "rejection sampling has no --speculative-accept-threshold-*"
    return None


def refused_model(*, keeps_state: bool) -> str | None:
    """Why a target model cannot be sized, or None: state of Mamba or linear attention follows one chain only."""
    if keeps_state:
        return "--tile-spec does not support this model yet: it has Mamba or linear-attention state"
    return None
