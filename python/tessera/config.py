"""What is switched on, derived from SGLang's own options; the same in every process of one server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera import cpu
from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.flags import Flags
from tessera.refusal import spreads_attention
from tessera.server_options import ServerOptions

if TYPE_CHECKING:
    from tessera.capabilities.fingerprints.room import VerifyRoom
    from tessera.capabilities.inject.model import Model
    from tessera.delivery.inbox import Inbox
    from tessera.delivery.outcome import RowStoreStats
    from tessera.metrics import Metrics

DISABLE = "TESSERA_DISABLE"
"""Environment variable: 1 gives the stock server, without our hooks."""

ON = "tessera"
"""The key of a scheduler's features and conditions in what it sends to the main process once it is ready."""
FEATURES = (
    *("rows", "inject", "speculative_rows", "speculative_stops"),
    *("cpu_speculation", "cpu_experts", "cpu_latents", "cpu_windows", "cpu_host_cache", "cpu_kernels"),
    *("tilespec", "detokenizers", "dp_attention", "host_cache"),
)
"""What can be on, each a field of `Settings`."""
CONDITIONS = (
    *("eagle_chains", "eagle_trees", "standalone_chains", "standalone_trees"),
    *("cpu_chains", "cpu_trees", "cuda_drafts", "cuda_chains", "cuda_trees"),
    *("sampled_drafts", "draft_models", "row_trees", "crash_dumps", "playground"),
    *("ragged_graphs", "ragged_triton", "triton_extends", "last_mlps", "last_queries", "plain_logits"),
)
"""What else decides which functions of SGLang's are called: drafts that ``--tile-spec`` sizes by algorithm, shape and
device; those that are sampled; draft models on the CPU engine; rows of trees; dumps of requests; ``--tessera-ui``.
The last line's are not decided by options: a scheduler finds them out (`found`), of its models and their attention."""


@dataclass(slots=True)
class Settings:
    """The state of this process.

    Attributes:
        rows: whether the row store is kept (``--enable-return-hidden-states``).
        speculative_rows: whether they are those of accepted drafts (``--speculative-algorithm``).
        speculative_stops: whether answers end where plain decoding ends them (``--speculative-algorithm`` with one
            of rows, ``--enable-injection``, ``--tile-spec``).
        cpu_speculation: whether drafts are verified on the CPU engine (``--speculative-algorithm``), for which SGLang's
            ``torch_native`` attention needs our additions.
        cpu_experts: whether ranks of the CPU engine hold some experts each (``--ep-size``).
        cpu_latents: whether the model's KV on the CPU engine are latents (MLA), which SGLang's ``torch_native``
            attention misreads.
        cpu_windows: whether its sliding windows have a KV pool of their own there, with which it does the same.
        cpu_host_cache: whether `host_cache` is on there, for which SGLang has kernels for GPUs alone.
        cpu_kernels: whether its code calls Triton kernels there that SGLang has no other version of.
        inject: whether requests may inject vectors (``--enable-injection``).
        tilespec: whether speculative decoding sizes itself (``--tile-spec``).
        detokenizers: whether several processes make text of tokens (``--detokenizer-worker-num``).
        dp_attention: whether ranks of one model have requests of their own (``--enable-dp-attention``).
        host_cache: whether evicted prefixes are kept in the host's memory (``--enable-hierarchical-cache``).
        deterministic: whether the arithmetic is the same bit by bit (``--enable-deterministic-inference``).
        grammars: whether a grammar of a request is survived: SGLang's default backend ends a server without a GPU.
        hidden_size: H of the model; None until the model's configuration is known.
        vocabulary: how many token ids the model has; 0 until its configuration is known.
        context: tokens of a prompt and its answer at most; likewise.
    """

    rows: bool = False
    speculative_rows: bool = False
    speculative_stops: bool = False
    cpu_speculation: bool = False
    cpu_experts: bool = False
    cpu_latents: bool = False
    cpu_windows: bool = False
    cpu_host_cache: bool = False
    cpu_kernels: bool = False
    inject: bool = False
    tilespec: bool = False
    detokenizers: bool = False
    dp_attention: bool = False
    host_cache: bool = False
    deterministic: bool = False
    grammars: bool = True
    hidden_size: int | None = None
    vocabulary: int = 0
    context: int = 0

    @classmethod
    def from_server_args(cls, args: ServerOptions, flags: Flags) -> Settings:
        """What SGLang's options and ours ask for."""
        rows = args.return_hidden_states_mode == "full"
        host_cache = (rows or flags.needs_injection) and bool(args.enable_hierarchical_cache)
        return cls(
            inject=flags.needs_injection,
            rows=rows,
            speculative_rows=rows and bool(args.speculative_algorithm),
            speculative_stops=bool(args.speculative_algorithm) and (rows or flags.needs_injection or flags.tile_spec),
            cpu_speculation=cpu.speculates(args),
            cpu_experts=args.device == "cpu" and args.ep_size > 1,
            cpu_latents=cpu.keeps_latents(args),
            cpu_windows=cpu.has_windows(args),
            cpu_host_cache=host_cache and args.device == "cpu",
            cpu_kernels=cpu.calls_kernels(args),
            tilespec=flags.tile_spec,
            detokenizers=rows and args.detokenizer_worker_num > 1,
            dp_attention=(rows or flags.needs_injection) and spreads_attention(args),
            host_cache=host_cache,
            deterministic=bool(args.enable_deterministic_inference),
            grammars=args.device != "cpu" or args.grammar_backend != "xgrammar",
        )

    @property
    def guarded(self) -> bool:
        """Whether a feature is on that requests can ask for: then all fields of a request are checked, SGLang's too."""
        return self.rows or self.inject or self.tilespec

    def features(self) -> list[str]:
        """Names of what is on, as `tessera_patches.core.seam.Seam.feature` has them."""
        return [name for name in FEATURES if getattr(self, name)]


def conditions_of(args: ServerOptions, flags: Flags) -> tuple[str, ...]:
    """Those of `CONDITIONS` that hold with SGLang's ``ServerArgs``, after its own checks, and our options."""
    rows = args.return_hidden_states_mode == "full"
    algorithm = (args.speculative_algorithm or "").lower().rstrip("3")  # of EAGLE3
    draft_model = algorithm in ("eagle", "standalone")
    trees = (args.speculative_eagle_topk or 1) > 1
    several = (args.speculative_num_steps or 0) > 1  # else a draft needs no forward of its own
    sampled = flags.tile_spec and several and bool(args.speculative_use_rejection_sampling)
    shape = "trees" if trees else "chains"
    found = {
        f"{algorithm}_{shape}": flags.tile_spec,
        f"{args.device}_{shape}": flags.tile_spec and several and not sampled,
        f"{args.device}_drafts": flags.tile_spec,
        "sampled_drafts": sampled,
        "draft_models": cpu.speculates(args) and draft_model,
        "row_trees": rows and trees and draft_model and not args.enable_multi_layer_eagle,
        "crash_dumps": bool(args.crash_dump_folder),
        "playground": flags.tessera_ui,
    }
    return tuple(name for name in CONDITIONS if found.get(name))


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a scheduler gets from the main process, as an attribute of SGLang's ``ServerArgs``.

    Attributes:
        flags: our options.
        features: names of what is on, of `FEATURES`.
        results: the address at which the main process receives rows; None where none are kept.
        calls: where calls of seams are counted (`tessera_patches.core.calls`).
    """

    flags: Flags
    features: tuple[str, ...]
    results: str | None
    calls: str


flags = Flags()
"""Our options of the server in this process."""
active = Settings()
"""The settings in force in this process."""
conditions: tuple[str, ...] = ()
"""Those of `CONDITIONS` that hold; in a scheduler those that it has found out."""
results: str | None = None
"""In a scheduler, the address to which rows are sent."""
injection: Model | None = None
"""What injection knows about the model; None until the server starts, and in other processes."""
room: VerifyRoom | None = None
"""How many tokens the engine has room for; None until the server starts, and in other processes."""
thresholds = Thresholds()
"""What a verifier accepts; in the main process those of ``--toploc-thresholds``."""
inbox: Inbox | None = None
"""Where the main process receives rows; None in other processes, and where no rows are kept."""
stores: dict[int, RowStoreStats] = {}
"""In the main process, the latest row-store statistics of each replica."""
metrics: Metrics | None = None
"""What is counted; None in other processes, and without ``--enable-metrics``."""


def on() -> list[str]:
    """What a client can ask of this server, and what else is on: by name."""
    return [*active.features(), *(["fingerprints"] if flags.toploc_verification else [])]


def switch_on(settings: Settings, options: Flags, calls: str) -> SchedulerSettings:
    """Put a server's settings in force in its main process. Returns what its schedulers need."""
    global active, flags, thresholds, inbox  # noqa: PLW0603 - one server a process at a time
    active, flags = settings, options
    stores.clear()
    thresholds = Thresholds() if flags.toploc_thresholds is None else Thresholds.load(flags.toploc_thresholds)
    inbox = None
    if active.rows:
        from tessera.delivery.inbox import Inbox

        inbox = Inbox()
    return SchedulerSettings(flags, tuple(active.features()), inbox.address if inbox else None, calls)


def found(condition: str) -> None:
    """Note, in a scheduler, that one of `CONDITIONS` holds; it tells the main process once it is ready."""
    global conditions  # noqa: PLW0603
    conditions = (*conditions, condition)


def apply(decided: SchedulerSettings) -> None:
    """Put in force, in a scheduler, what the main process decided."""
    global active, flags, results, conditions  # noqa: PLW0603 - one scheduler a process
    active = Settings(**{name: name in decided.features for name in FEATURES})
    flags, results, conditions = decided.flags, decided.results, ()


def disabled() -> bool:
    """Whether the operator wants the stock server."""
    return os.environ.get(DISABLE, "") not in ("", "0")
