"""The OpenAPI of ``/v1/toploc/verify``, beside the types of its body."""

from tessera.capabilities.fingerprints.sampling import SamplingStatistics
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.schema_parts import TEXT, Schema, integer, obj, only

_NUMBER: Schema = {"type": "number"}


def complete(claim: Schema, vocabulary: int | None) -> None:
    """Add what types do not say to a claim's schema (in place): its token ids, and what excludes what."""
    ids = claim["properties"]
    for name in ("input_ids", "output_ids"):
        ids[name] |= {"items": integer(0, None if vocabulary is None else vocabulary - 1)}
    ids["input_ids"]["minItems"] = 1
    hashes = only("row_hashes", "fingerprints", "nonce")
    hashes["required"].append("sampling")
    claim["anyOf"] = [only("fingerprints", "row_hashes"), hashes]


def answer() -> Schema:
    """The schema of the answer of ``/v1/toploc/verify``."""
    distance = obj(dict.fromkeys(Distance._fields, _NUMBER), list(Distance._fields))
    found = {"tokens": integer(0, None), "mismatches": integer(0, None), "gap_mean": _NUMBER, "gap_max": _NUMBER}
    result = {
        "verdict": {"enum": ["pass", "fail", "unverifiable"]},
        "reason": TEXT,
        "statistics": {"type": "array", "items": distance},
        "thresholds": distance,
        "sampling": obj(found, list(SamplingStatistics._fields)),
    }
    results = {"type": "array", "items": obj(result, ["verdict", "reason", "statistics", "thresholds"])}
    return obj({"results": results}, ["results"])
