"""Speculative decoding on the CPU engine: what of it our additions to ``torch_native`` attention cover."""

from typing import Any

BACKEND = "torch_native"
"""The attention backend of a machine without a GPU."""
ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")
"""The algorithms whose drafts it verifies."""


def wanted(args: Any) -> bool:
    """Whether ``args`` (SGLang's ``ServerArgs``) ask for speculative decoding on the CPU engine."""
    return bool(args.speculative_algorithm) and args.device == "cpu" and BACKEND in args.get_attention_backends()


def refused(args: Any) -> list[str]:
    """One sentence for each option in ``args`` that such a server does not support."""
    lines = []
    if args.speculative_algorithm not in ALGORITHMS:
        lines.append(f"--speculative-algorithm {args.speculative_algorithm}: on the CPU engine {', '.join(ALGORITHMS)}")
    backends = {*args.get_attention_backends(), args.speculative_draft_attention_backend or BACKEND}
    if backends != {BACKEND}:
        others = ", ".join(sorted(backends - {BACKEND}))
        lines.append(f"--attention-backend {others}: speculative decoding on the CPU engine needs {BACKEND} throughout")
    if args.enable_multi_layer_eagle:
        lines.append("--enable-multi-layer-eagle is not supported on the CPU engine")
    if args.page_size > 1 and (args.speculative_eagle_topk or 1) > 1:
        lines.append(f"--page-size {args.page_size}: --speculative-eagle-topk above 1 on the CPU engine needs 1")
    return lines


def refused_model(sliding_window: int | None) -> str | None:
    """Why drafts for a model cannot be verified, or None. ``sliding_window`` is in tokens; -1 is none."""
    if sliding_window in (None, -1):
        return None
    return "--speculative-algorithm on the CPU engine does not support this model: it has sliding-window attention"
