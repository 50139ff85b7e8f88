"""No field or key of ours is missing in the OpenAPI, and none is there that is gone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sglang.srt.entrypoints import http_server
from sglang.srt.entrypoints.openai import protocol
from sglang.srt.managers import io_struct

from tessera.http.schema import INFORMING, STOCK_REQUESTS, document, merge, request_fields
from tessera_patches.http import openai, request
from tessera_patches.http.http_server import GENERATING

CHANGED = {"return_hidden_states"}
"""SGLang's fields that take more with us."""


def names(of: Any) -> set[str]:
    """Of the fields of a dataclass or a pydantic model."""
    return {field.name for field in dataclasses.fields(of)} if dataclasses.is_dataclass(of) else set(of.model_fields)


@pytest.mark.parametrize(
    ("ours", "stock"),
    [
        (request.GenerateReqInput, io_struct.GenerateReqInput),
        (openai.ChatCompletionRequest, protocol.ChatCompletionRequest),
        (openai.CompletionRequest, protocol.CompletionRequest),
    ],
)
def test_fields(ours: Any, stock: Any) -> None:
    """Of the three requests that we extend."""
    assert set(request_fields(stock.__name__)) == (names(ours) - names(stock)) | CHANGED


def test_each_field_has_a_meaning() -> None:
    """In the OpenAPI document, and so in the table of fields."""
    bodies: dict[str, Any] = {f"on {name}": {"properties": request_fields(name)} for name in STOCK_REQUESTS}
    for name, body in {**bodies, **document()["components"]["schemas"]}.items():
        for one in body.get("anyOf", [body]) if "properties" not in body else [body]:
            silent = [field for field, schema in one["properties"].items() if "description" not in schema]
            assert not silent, name


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")  # SGLang's, as FastAPI names them
def test_operations() -> None:
    """Each has a name of its own, the same at each start; each of our routes has a group that is described."""
    ours = document()
    published = merge(http_server.app.openapi(), ours, generating=GENERATING, routes=True)
    http_server.app.openapi_schema = None
    operations = [(method, own) for path in published["paths"].values() for method, own in path.items()]
    identities = [own["operationId"] for _, own in operations]
    assert sorted(identities) == sorted(set(identities))
    assert all(own["operationId"].lower().endswith(method) for method, own in operations if "tags" not in own)
    known = {tag["name"] for tag in published["tags"]}
    for path in (*ours["paths"], *GENERATING, *INFORMING):
        assert all(known.issuperset(own["tags"]) for own in published["paths"][path].values()), path
