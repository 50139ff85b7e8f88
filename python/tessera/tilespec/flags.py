"""Options of TileSpec."""

from dataclasses import dataclass
from pathlib import Path

from tessera.flag import option


@dataclass(frozen=True)
class TileSpecFlags:
    """A part of `tessera.flags.Flags`."""

    tile_spec: bool = option(
        False,
        "choose in every step how many tokens to draft for each request, up to --speculative-num-steps, and which "
        "of them to verify; with --speculative-algorithm EAGLE, EAGLE3 or STANDALONE",
    )
    tile_spec_no_rejection_sampling: bool = option(
        False,
        "with --tile-spec, draft likeliest tokens. By default chains of EAGLE and EAGLE3 are sampled, as with "
        "--speculative-use-rejection-sampling, which takes more memory, and pays off where requests sample",
    )
    tile_spec_trace: Path | None = option(
        None, "record every choice of --tile-spec in this file, for: tessera tilespec replay FILE", Path, "FILE"
    )
