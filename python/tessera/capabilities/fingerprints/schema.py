"""The OpenAPI of ``/v1/toploc/verify``, beside the types of its body."""

from tessera.capabilities.fingerprints.options import WITH_MESSAGES, WITHOUT_MESSAGES
from tessera.capabilities.fingerprints.sampling import SamplingStatistics
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.schema_parts import TEXT, Schema, integer, obj, only, or_null

_NUMBER: Schema = {"type": "number"}


def complete(claim: Schema, vocabulary: int | None) -> None:
    """Add what types do not say to a claim's schema (in place): its token ids, and what excludes what."""
    ids = {"type": "array", "items": integer(0, None if vocabulary is None else vocabulary - 1)}
    claim["properties"]["input_ids"] |= or_null({**ids, "minItems": 1})
    claim["properties"]["output_ids"] |= or_null(ids)
    fingerprints = only("fingerprints", "row_hashes", *WITH_MESSAGES)
    hashes = only("row_hashes", "fingerprints", "nonce", *WITH_MESSAGES)
    hashes["required"].append("sampling")
    for by_ids in (fingerprints, hashes):
        by_ids["required"] += ("input_ids", "output_ids")
        by_ids["properties"] |= {name: {"type": "array"} for name in ("input_ids", "output_ids")}
    messages = only("messages", *WITHOUT_MESSAGES)
    messages["required"].append("fingerprints")
    messages["properties"]["fingerprints"] = {"type": "array"}
    claim["anyOf"] = [fingerprints, hashes, messages]


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
