"""The histogram of survivals that `tessera_kernels.allocate_verify` adds to and the host reads. Imports nothing."""

from __future__ import annotations

HISTOGRAM_BINS = 64
"""Equal bins of survival over 0 to 1."""
HISTOGRAM_UNIT = 2.0**-18
"""Survivals are summed as integers of this unit, so that the sum does not depend on the order of atomic additions. What
was added between two looks must stay below 2^31: 8,192 requests in all."""
