"""The inventory: every seam, once. Lock file, checks, ``tessera seams`` and docs/reference/seams.md come from it."""

from importlib import import_module

from tessera import cpu, versions
from tessera_patches import support
from tessera_patches.core import seams as core
from tessera_patches.core.seam import Phase, Seam
from tessera_patches.fingerprints import seams as fingerprints
from tessera_patches.guard import seams as guard
from tessera_patches.http import seams as http
from tessera_patches.inject import seams as inject
from tessera_patches.launch import seams as launch
from tessera_patches.rows import seams as rows
from tessera_patches.tilespec import seams as tilespec
from tessera_patches.tilespec.attention import seams as tilespec_attention
from tessera_patches.tilespec.draft import seams as tilespec_draft
from tessera_patches.tilespec.extend import seams as tilespec_extend
from tessera_patches.tilespec.start import seams as tilespec_start
from tessera_patches.tilespec.verify import seams as tilespec_verify

DECLARED = (
    *core.SEAMS,
    *launch.SEAMS,
    *http.SEAMS,
    *guard.SEAMS,
    *rows.SEAMS,
    *fingerprints.SEAMS,
    *tilespec.SEAMS,
    *tilespec_draft.SEAMS,
    *tilespec_verify.SEAMS,
    *tilespec_extend.SEAMS,
    *tilespec_attention.SEAMS,
    *tilespec_start.SEAMS,
    *inject.SEAMS,
    *(import_module("tessera_patches.cpu.seams").SEAMS if cpu.INSTALLED else ()),
)
"""The seams of all versions of SGLang."""


def at(sglang_version: str) -> tuple[Seam, ...]:
    """The seams of one version, without those of features that it does not have alone."""
    absent = support.absent(sglang_version)
    own = [seam.at(sglang_version) for seam in DECLARED if not set(seam.feature.split(", ")) <= absent]
    return tuple(seam for seam in own if seam is not None)


SEAMS = at(versions.installed() or support.DEFAULT)
"""The seams of the installed version."""


def seams(phase: Phase, features: list[str]) -> list[Seam]:
    """The seams of one phase for these features."""
    on = {"", *features}
    return [seam for seam in SEAMS if seam.phase is phase and not on.isdisjoint(seam.feature.split(", "))]


def hooks(phase: Phase, features: list[str]) -> list[Seam]:
    """Those of them that SGLang's hook registry installs."""
    return [seam for seam in seams(phase, features) if seam.registered]
