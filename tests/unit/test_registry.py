"""The list of capabilities, and what all of them have in common."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tessera import admission, capabilities
from tessera.capabilities.registry import BY_NAME, CAPABILITIES, declared_fields
from tessera.capability import Capability, Progress, Server, Shape
from tessera.errors import BadRequest
from tessera.http.openai import PLACES
from tessera_testing.carried import options

SERVER = Server(rows=True, hidden_size=8, deterministic=True)
FOLDERS = {path.parent.name for path in Path(capabilities.__path__[0]).glob("*/capability.py")}
REQUESTS: dict[str, dict[str, Any]] = {
    "embed": {"return_embedding": True},
    "states": {"return_hidden_states": "last"},
    "token_ids": {"return_output_ids": True},
    "row_hashes": {"return_row_hashes": True},
    "fingerprints": {"return_toploc_fingerprints": True},
}
"""A request for each, but for vectors."""

each = pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda own: own.name)


def test_names() -> None:
    """Each has a folder of its name, and each folder is listed."""
    assert len(BY_NAME) == len(CAPABILITIES)
    assert set(BY_NAME) == FOLDERS
    for name, capability in BY_NAME.items():
        assert type(capability).__module__ == f"tessera.capabilities.{name}.capability"


def test_fields_belong_to_one() -> None:
    """Those of requests, and those of answers."""
    requested = Counter(name for capability in CAPABILITIES for name in capability.field_names())
    answered = Counter(name for capability in CAPABILITIES for name in capability.answers)
    assert {*requested.values(), *answered.values()} == {1}
    assert {name for name, _ in declared_fields(openai=False)} == set(requested)
    assert {name for name, _ in declared_fields(openai=True)} < set(requested)
    assert set(answered) < set(PLACES)


@each
def test_declarations(capability: Capability[Any, Any]) -> None:
    """What is said of fields is said of fields that there are."""
    names = set(capability.field_names())
    assert {*capability.listed, *capability.without_tokens} <= names
    assert capability.pieces <= capability.answers.keys()
    assert {name for name, _, _ in capability.declared()} == names
    for _, default, _ in capability.declared():
        assert default in (None, False)


def test_a_request_for_each() -> None:
    """Those that read rows."""
    assert set(REQUESTS) == FOLDERS - {"inject"}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_each_does_with_a_request(name: str) -> None:
    """It rides as text and comes back, its record asks for the same again, and its answer is null without rows."""
    capability = BY_NAME[name]
    admitted, _ = admission.admit(REQUESTS[name], {}, SERVER)
    own = options(admitted)[name]
    assert capability.from_wire(capability.to_wire(own)) == own
    assert options(admission.admit(capability.sent(own), {}, SERVER)[0]) == {name: own}
    assert set(capability.sent(own)) <= set(capability.field_names())
    assert capability.size(own, Shape(8, 2, 100), 10, 5) >= 0
    if capability.awaits(own):
        assert capability.reads(own, Progress(10, 5, hidden_size=8))


@pytest.mark.parametrize("name", REQUESTS)
def test_without_rows(name: str) -> None:
    """Who asks is told the flag, but where SGLang answers itself; false asks for nothing."""
    bare = Server(rows=False)
    if name == "states":
        assert admission.admit(REQUESTS[name], None, bare)[0] is None
        return
    with pytest.raises(BadRequest, match="only on a server started with --enable-return-hidden-states"):
        admission.admit(REQUESTS[name], None, bare)
    refused = dict.fromkeys(REQUESTS[name], False)
    assert admission.admit(refused, {"n": 1}, bare)[0] == {"n": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("return_embedding", 0),
        ("return_hidden_states", 0),
        ("return_input_ids", 0),
        ("return_output_ids", 0.0),
        ("return_row_hashes", 0),
        ("return_toploc_fingerprints", 0),
        ("hidden_states_format", False),
        ("toploc_nonce", False),
        ("toploc_nonce", 0),
        ("toploc_verification_fingerprint_to_validate", False),
        ("toploc_verification_fingerprint_to_validate", 0),
    ],
)
def test_nothing_that_a_client_writes_is_taken_for_nothing(field: str, value: object) -> None:
    """0 is no boolean, and false no text."""
    with pytest.raises(BadRequest) as refused:
        admission.admit({field: value}, {"max_new_tokens": 0}, SERVER)
    assert refused.value.field == field


def test_a_nonce_that_is_no_unicode() -> None:
    """Half a surrogate pair, which JSON can write: admitted or refused, but no error of ours."""
    try:
        admission.admit({"return_toploc_fingerprints": True, "toploc_nonce": "\ud800"}, {}, SERVER)
    except BadRequest as error:
        assert error.field == "toploc_nonce"  # noqa: PT017 - either outcome is fine
