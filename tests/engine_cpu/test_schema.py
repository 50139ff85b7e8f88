"""The OpenAPI of our routes is true: schemathesis sends what it allows and what it does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tessera.errors import ANSWERED
from tessera.http.schema import STOCK_REQUESTS, document, request_fields
from tessera.launching.server import Server


def test_the_server_publishes_it(server: Server) -> None:
    """In SGLang's own document, with the limits of this model, and every reference leads somewhere."""
    published: Any = httpx.get(f"{server.url}/openapi.json", timeout=60).raise_for_status().json()
    ours = json.loads(json.dumps(document(256, 1024, adapters=False)))
    assert set(ours["paths"]) == {"/v1/embeddings", "/encode", "/v1/toploc/verify"}
    for path in ours["paths"]:
        assert published["paths"][path] == ours["paths"][path]
    schemas = published["components"]["schemas"]
    for name in STOCK_REQUESTS:
        fields = json.loads(json.dumps(request_fields(name)))
        assert {"input_embed_overrides", "toploc_verification_fingerprint_to_validate"} <= set(fields)
        assert {field: schemas[name]["properties"][field] for field in fields} == fields
    names = [operation["operationId"] for path in published["paths"].values() for operation in path.values()]
    assert sorted(names) == sorted(set(names))
    assert {"createEmbeddings", "encodePost", "encodePut", "verifyFingerprints"} <= set(names)
    assert published["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    for path in ("/generate", "/v1/chat/completions", "/v1/completions", "/invocations", "/vertex_generate"):
        responses = published["paths"][path]["post"]["responses"]
        assert {str(status) for status in ANSWERED.values()} <= set(responses)
        assert "too_large" in responses["413"]["description"]
    references = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(published))
    assert set(references) <= set(schemas)
    assert {"/generate", "/v1/chat/completions", "/v1/models"} <= set(published["paths"])


CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 413, 422]

[[operations]]
include-name = "POST /v1/toploc/verify"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", 400]
"""
"""A list with one item too many is a 413, which schemathesis does not count as a refusal by itself.

How many fingerprints a claim has depends on its tokens, which a schema cannot say: what it allows may be a 400.
"""


def _with_good_spans(schemas: Any) -> Any:
    """A schema cannot say that a span begins before it ends, and ends within the prompt: here it is one that does."""
    for name in ("EmbeddingsRequest", "EncodeRequest"):
        schemas["components"]["schemas"][name]["properties"]["spans"] = {"enum": [[[0, 1]], None]}
    return schemas


def test_schemathesis(server: Server, tmp_path: Path) -> None:
    """No 500, no answer that the document does not allow; what it allows is accepted, and nothing else."""
    (tmp_path / "openapi.json").write_text(json.dumps(_with_good_spans(document(256, 1024, adapters=False))))
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", "openapi.json", "--url", server.url]
    command += ["--phases", "examples,coverage,fuzzing", "--mode", "all", "--max-examples", "20", "--seed", "1"]
    command += ["--checks", "all", "--exclude-checks", "ignored_auth,use_after_free,ensure_resource_availability"]
    command += ["--no-color", "--generation-database", "none", "--request-timeout", "60"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-1000:]
