"""The settings that are compared, and how a server is started with each."""

from collections.abc import Sequence
from pathlib import Path

from tilespec.without import PARTS

STATIC = {"k1": 1, "k2": 2, "k3": 3, "k5": 5, "k7": 7}
"""Fixed numbers of draft tokens."""
TILE_STEPS = 11
"""The most draft tokens that TileSpec may choose, where its name does not end with another number."""
REJECTING = "rejecting"
NAMES = (
    *("none", *STATIC, "tile", "tile-7", "tile-useless", "tile-before"),
    *(f"{name}-{REJECTING}" for name in (*STATIC, "tile")),
    *(f"tile-without-{part}" for part in PARTS),
)
"""No speculation; fixed numbers; TileSpec, with a useless draft, of another checkout; with rejection sampling; TileSpec
that does one thing as SGLang does it."""
ALGORITHMS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "STANDALONE": "draft"}
"""SGLang's names, and the folder of each one's draft."""

COMMON = (
    *("--dtype", "bfloat16"),
    # With speculation SGLang's default is 48. More than the clients: of 128 in 128 places one waited for another's end.
    *("--max-running-requests", "160"),
    *("--max-total-tokens", "65536"),  # 128 requests of 480 tokens, and room; eight servers share one GPU
    *("--mem-fraction-static", "0.95"),  # of what is free; the line above is the limit that counts
    *("--cuda-graph-bs-decode", *map(str, (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128))),
    "--sleep-on-idle",  # while it is another's turn: each would keep a core busy
)
GPU = (*COMMON, "--attention-backend", "fa3")
# With fa3, SGLang 0.5.17 runs the draft's extend step without a CUDA graph: a baseline that way would be a straw man.
GPU_DRAFT = ("--speculative-draft-attention-backend", "triton")


def measured_at(temperature: float, settings: Sequence[str]) -> list[str]:
    """Those of `settings` that loads of a temperature are measured with.

    Rejection sampling is there for tokens that are sampled. So of a setting that is among them with it and without it,
    the one with it is measured where tokens are sampled, and the other one where they are not.
    """
    pairs = [name for name in settings if f"{name}-{REJECTING}" in settings]
    left_out = pairs if temperature > 0 else [f"{name}-{REJECTING}" for name in pairs]
    return [name for name in settings if name not in left_out]


def server_arguments(setting: str, algorithm: str, models: Path, *, gpu: bool) -> tuple[str, ...]:
    """What the launcher gets beside the model; without a GPU the flags of the CPU engine come from elsewhere.

    Raises:
        KeyError: there is no such setting or algorithm.
    """
    base = GPU if gpu else ()
    if setting == "none":
        return base
    name, _, how = setting.partition("-")
    tile = name == "tile"
    steps = int(how) if how.isdigit() else TILE_STEPS if tile else STATIC[name]
    draft = "useless" if how == "useless" else ALGORITHMS[algorithm]
    return (
        *base,
        *("--speculative-algorithm", "EAGLE" if draft == "useless" else algorithm),
        *("--speculative-draft-model-path", str(models / draft)),
        *("--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(steps + 1)),
        *(GPU_DRAFT if gpu else ()),
        *(("--speculative-use-rejection-sampling",) if how == REJECTING else ()),
        *(("--tile-spec",) if tile else ()),
        *(("--tile-spec-no-rejection-sampling",) if tile and how != REJECTING else ()),
    )


def server_environment(setting: str, *, gpu: bool) -> dict[str, str]:
    """What a server needs in its environment: those without speculation and with fixed numbers are stock SGLang.

    Those with rejection sampling keep Tessera's plugin, with no feature on. Without a GPU all do: it has what SGLang's
    CPU engine lacks.
    """
    is_stock = setting == "none" or setting in STATIC
    return {"TESSERA_DISABLE": "1"} if gpu and is_stock else {}
