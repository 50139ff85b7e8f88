"""What the CPU engine serves with our additions.

On another device every answer is no. The additions are in a checkout, and not in the wheel.
"""

from importlib.util import find_spec

from tessera.installing import in_checkout
from tessera.server_options import ServerOptions

INSTALLED = find_spec("tessera_kernels.cpu") is not None
"""Whether the operators of the CPU engine are installed."""
MISSING = in_checkout("the CPU engine")
"""Why a server does not start without them, and what to do."""

BACKEND = "torch_native"
"""The attention backend of a machine without a GPU."""
ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")
"""The algorithms whose drafts it verifies."""


def enable() -> None:
    """Make SGLang's CPU engine usable in this process and its children.

    Raises:
        RuntimeError: it cannot be. The message says what to do.
    """
    if not INSTALLED:
        raise RuntimeError(MISSING)
    import tessera_kernels.cpu

    tessera_kernels.cpu.enable()


def calls_kernels(args: ServerOptions) -> bool:
    """Whether the model's code calls a Triton kernel that SGLang has no other version of."""
    model = args.model
    return args.device == "cpu" and model is not None and (model.has_delta_rule or model.shares_experts)


def keeps_latents(args: ServerOptions) -> bool:
    """Whether its KV are latents (MLA: DeepSeek-V2, V3, R1, Kimi-K2), which ``torch_native`` attention misreads."""
    return _attends(args) and args.model is not None and args.model.keeps_latents


def has_windows(args: ServerOptions) -> bool:
    """Whether its sliding windows have a KV pool of their own (Mellum), which ``torch_native`` attention misreads."""
    return _attends(args) and args.model is not None and args.model.has_windows


def speculates(args: ServerOptions) -> bool:
    """Whether they ask for speculative decoding."""
    return bool(args.speculative_algorithm) and _attends(args)


def _attends(args: ServerOptions) -> bool:
    return args.device == "cpu" and BACKEND in args.attention_backends


def refused(args: ServerOptions) -> list[str]:
    """One sentence for each option that a server that `speculates` does not support."""
    lines = []
    if args.speculative_algorithm not in ALGORITHMS:
        lines.append(f"--speculative-algorithm {args.speculative_algorithm}: on the CPU engine {', '.join(ALGORITHMS)}")
    others = {*args.attention_backends, args.speculative_draft_attention_backend or BACKEND} - {BACKEND}
    if others:
        names = ", ".join(sorted(map(str, others)))
        lines.append(f"--attention-backend {names}: speculative decoding on the CPU engine needs {BACKEND} throughout")
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
