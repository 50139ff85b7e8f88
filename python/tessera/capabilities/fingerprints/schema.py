"""The OpenAPI of fingerprints: fields of requests, and ``/v1/toploc/verify``."""

import msgspec

from tessera.capabilities.fingerprints.sampling import SamplingStatistics
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.capabilities.inject.options import FIELD as OVERRIDES_FIELD
from tessera.capabilities.inject.options import InjectFields
from tessera.http.adapters import FIELD as ADAPTER_FIELD
from tessera.limits import MAX_CLAIMS, MAX_FINGERPRINTS, MAX_NONCE_CHARACTERS
from tessera.schema_parts import ADAPTER, TEXT, Schema, integer, obj, or_null, ref, with_meanings

_TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MAX_FINGERPRINTS}
_NONCE: Schema = or_null({**TEXT, "minLength": 1, "maxLength": MAX_NONCE_CHARACTERS})
_NUMBER: Schema = {"type": "number"}
_INJECT = msgspec.json.schema_components([InjectFields], ref_template="#/components/schemas/Tessera{name}")[1]
_OVERRIDES: Schema = _INJECT["InjectFields"]["properties"][OVERRIDES_FIELD]
_LARGEST_SEED = 2**63 - 1
_MEANINGS = {
    "input_ids": "token ids of the prompt",
    "output_ids": "token ids of the response",
    "sampling": "how the prover says that it sampled: its tokens are judged too",
    "fingerprints": "of prompt and response, in their order",
    "nonce": "the verifier's, if the prover was given one",
    "row_hashes": "of prompt and response: the response is generated again instead",
}


def components(ids: Schema) -> Schema:
    """The schemas of ``/v1/toploc/verify``; ``ids`` is that of a prompt's token ids."""
    claims = {"type": "array", "items": ref("ToplocClaim"), "minItems": 1, "maxItems": MAX_CLAIMS}
    claims["description"] = "responses to verify"
    return {
        "ToplocVerifyRequest": obj({"claims": claims}, ["claims"]),
        "ToplocClaim": {"anyOf": [_claim_of_fingerprints(ids), _claim_of_hashes(ids)]},
    }


def answer() -> Schema:
    """Of ``/v1/toploc/verify``."""
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


def _claim_of_fingerprints(ids: Schema) -> Schema:
    return _claim(ids, {"fingerprints": _TEXTS, "nonce": _NONCE}, ["fingerprints"])


def _claim_of_hashes(ids: Schema) -> Schema:
    digest = {**TEXT, "minLength": 64, "maxLength": 64}
    hashes = {"type": "array", "items": digest, "minItems": 1, "maxItems": MAX_FINGERPRINTS}
    none = {"type": "null", "description": "none beside row_hashes"}
    claim = _claim(ids, {"row_hashes": hashes, "fingerprints": none, "nonce": none}, ["row_hashes", "sampling"])
    where = "only on a server started with --enable-deterministic-inference; sampling with temperature 0 or a seed"
    return {**claim, "description": where}


def _claim(ids: Schema, own: Schema, required: list[str]) -> Schema:
    sampling = {
        "temperature": {"anyOf": [{"const": 0}, {**_NUMBER, "minimum": 0.01, "maximum": 100}], "default": 1},
        "top_p": {**_NUMBER, "minimum": 0, "maximum": 1, "default": 1},
        "top_k": {"anyOf": [{"const": -1}, integer(1, None)], "default": -1},
        "seed": or_null(integer(0, _LARGEST_SEED)),
    }
    common = {
        "input_ids": ids,
        "output_ids": {**ids, "minItems": 0},
        "sampling": or_null(obj(sampling, [])),
        ADAPTER_FIELD: ADAPTER,
        OVERRIDES_FIELD: _OVERRIDES,
    }
    return obj(with_meanings(common | own, _MEANINGS), ["input_ids", "output_ids", *required])
