"""How the device counts survivals for the host: their histogram, and what they promised. Imports nothing."""

from __future__ import annotations

HISTOGRAM_BINS = 64
"""Equal bins of survival over 0 to 1."""
HISTOGRAM_UNIT = 2.0**-18
"""Survivals are summed as integers of this unit, so that the sum does not depend on the order of atomic additions. What
was added between two looks must stay below 2^31: 8,192 requests in all."""
PROMISED_UNIT = 2.0**-12
"""Promised tokens are sums of survivals in this unit, integers for the same reason. Between two looks a million of them
in one cell come out right."""
