"""What fingerprints count and time."""

from tessera.metrics import Counter

FINGERPRINTS_BUILT = Counter("fingerprints_built_total", "Fingerprints built.")
FINGERPRINTS_COMPARED = Counter("fingerprints_compared_total", "Claimed fingerprints compared.")
CLAIMS = Counter(
    "claims_total",
    "Claims answered by /v1/toploc/verify, by verdict.",
    "verdict",
    ("pass", "fail", "unverifiable"),
)
BUILD = "build_fingerprints"
COMPARE = "compare_fingerprints"
