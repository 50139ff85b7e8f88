"""Thresholds: which distances a verifier accepts."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tessera.capabilities.fingerprints.verifier import Distance
from tessera.errors import StartRefused

_PAPER_VALUES = 128


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The largest distance that passes. The defaults are the paper's: at least 90 of 128 exponents match.

    Attributes:
        exp_mismatches: share of values whose exponent may differ; files hold the number for their ``topk``.
        mant_err_mean: mean difference of mantissas.
        mant_err_median: median difference of mantissas.
    """

    exp_mismatches: float = 38 / _PAPER_VALUES
    mant_err_mean: float = 10.0
    mant_err_median: float = 8.0

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that ``tessera toploc calibrate`` wrote.

        Raises:
            StartRefused: it cannot be read, or holds no thresholds.
        """
        try:
            file = json.loads(path.read_text())
            values = {name: float(file["thresholds"][name]) for name in asdict(cls())}
            read = cls(**{**values, "exp_mismatches": values["exp_mismatches"] / int(file["topk"])})
        except (OSError, ValueError, TypeError, KeyError, ZeroDivisionError, RecursionError) as error:
            raise StartRefused(f"--toploc-thresholds {path}: no thresholds in it ({error!r})") from error
        if not all(math.isfinite(value) and value >= 0 for value in asdict(read).values()):
            raise StartRefused(f"--toploc-thresholds {path}: thresholds are numbers from 0 up")
        return read

    def exceeded(self, distance: Distance, values: int) -> list[str]:
        """Which of the thresholds a fingerprint of so many values exceeds, with both numbers."""
        limits = Distance(self.mismatches_of(values), self.mant_err_mean, self.mant_err_median)
        return [
            f"{name} {found:g} > {limit:g}"
            for name, found, limit in zip(Distance._fields, distance, limits, strict=True)
            if found > limit
        ]

    def mismatches_of(self, values: int) -> int:
        """How many of so many exponents may differ."""
        return math.floor(self.exp_mismatches * values + 1e-9)

    def why_failed(self, found: Sequence[Distance], values: Sequence[int]) -> str:
        """The first fingerprint that fails, and why; "" if all pass."""
        for i, (distance, count) in enumerate(zip(found, values, strict=True)):
            exceeded = self.exceeded(distance, count)
            if exceeded:
                return f"fingerprint {i}: {', '.join(exceeded)}"
        return ""

    def for_values(self, topk: int) -> dict[str, float]:
        """As files and answers show them, with the number of mismatches for fingerprints of ``topk`` values."""
        return {**asdict(self), "exp_mismatches": self.mismatches_of(topk)}
