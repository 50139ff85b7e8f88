"""Units in which the device counts survivals for the host. Imports nothing.

Survivals are summed as integers, so that sums do not depend on the order of atomic additions.
"""

HISTOGRAM_BINS = 64
"""Equal bins of survival from 0 to 1."""
HISTOGRAM_UNIT = 2.0**-18
"""Unit of the sums of survivals in a histogram. Between two reads a sum must stay below 2^31: 8,192 requests."""
PREDICTION_UNIT = 2.0**-12
"""Unit of the numbers of accepted tokens that the model predicts, which are sums of survivals. Between two reads each
cell has room for a million survivals."""
