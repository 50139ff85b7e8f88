"""The inventory: every seam, once. The lock file, the checks, ``tessera seams`` and docs/seams.md come from it."""

from __future__ import annotations

from tessera_patches.inventory import cpu, guard, inject, launch, records, rows, speculation
from tessera_patches.seam import Phase, Seam

SEAMS = (*launch.SEAMS, *guard.SEAMS, *rows.SEAMS, *speculation.SEAMS, *inject.SEAMS, *cpu.SEAMS, *records.SEAMS)


def seams(phase: Phase, features: list[str]) -> list[Seam]:
    """The seams to install in one phase for these features."""
    on = {"", *features}
    return [seam for seam in SEAMS if seam.phase is phase and not on.isdisjoint(seam.feature.split(", "))]
