"""What ``--tile-spec`` cannot be combined with: refused at start, by name."""

from __future__ import annotations

from typing import Any

ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")
"""Drafts that come one token at a time from a model, each with a probability. NGRAM's have none, and its worker has no
stage at which their number could be chosen."""


def refused(args: Any) -> list[str]:
    """One sentence for each option in ``args`` (SGLang's ``ServerArgs``) that does not go with ``--tile-spec``."""
    if args.speculative_algorithm not in ALGORITHMS:
        found = args.speculative_algorithm or "nothing"
        return [f"--tile-spec needs --speculative-algorithm {', '.join(ALGORITHMS)}; got {found}"]
    checks = {
        f"--speculative-eagle-topk {args.speculative_eagle_topk}: it sizes chains, use 1": (
            args.speculative_eagle_topk not in (None, 1)
        ),
        "--speculative-adaptive: it chooses the number of steps itself": args.speculative_adaptive,
        "--speculative-use-rejection-sampling: not yet tested": args.speculative_use_rejection_sampling,
        "--enable-deterministic-inference: what is verified depends on the load": args.enable_deterministic_inference,
        "--enable-multi-layer-eagle: its worker cannot change the number of steps": args.enable_multi_layer_eagle,
        f"--tp-size {args.tp_size}: ranks could decide differently": args.tp_size > 1,
        f"--pp-size {args.pp_size}: SGLang's drafts need 1": args.pp_size > 1,
        "--enable-dp-attention: ranks could decide differently": args.enable_dp_attention,
        "--enable-two-batch-overlap: it splits the batch that is sized": args.enable_two_batch_overlap,
        "--enable-pdmux: it keeps attention backends of its own": args.enable_pdmux,
    }
    return [f"--tile-spec cannot be combined with {what}" for what, applies in checks.items() if applies]
