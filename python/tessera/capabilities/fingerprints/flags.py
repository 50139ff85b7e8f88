"""Options of fingerprints."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from tessera.flag import option
from tessera.limits import MAX_TOPK


def _topk(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MAX_TOPK:
        return int(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 to {MAX_TOPK}")


@dataclass(frozen=True)
class FingerprintFlags:
    """A part of `tessera.flags.Flags`."""

    toploc_verification: bool = option(
        False,
        "return TOPLOC fingerprints with every response (toploc_verification_fingerprints) unless its request says "
        "return_toploc_fingerprints: false; turns --enable-return-hidden-states on",
    )
    toploc_verification_topk: int = option(
        128, "values that one fingerprint proves; prover and verifier must agree (default: 128)", _topk, "K"
    )
    toploc_thresholds: Path | None = option(
        None, "thresholds of the verifier, a file written by: tessera toploc calibrate", Path, "FILE"
    )

    @property
    def needs_rows(self) -> bool:
        """Whether the row store must be on, as with ``--enable-return-hidden-states``."""
        return self.toploc_verification


def refused(flags: FingerprintFlags, *, rows: bool) -> list[str]:
    """Why an option cannot be used; nothing where all can. ``rows``: whether the server keeps rows."""
    if rows or not flags.needs_rows:
        return []
    return ["--toploc-verification needs every row: leave out --return-hidden-states-mode, or set it to full"]
