"""Which fields about fingerprints are admitted, and what rides to the scheduler for them."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest
import torch

from tessera import admission, carry, config
from tessera.capabilities.fingerprints.answered import append_output
from tessera.capabilities.fingerprints.claims import read_claim
from tessera.capabilities.fingerprints.options import CLAIM_FIELD, NONCE_FIELD, FingerprintOptions, ToplocVerifyRequest
from tessera.capabilities.inject.model import Model
from tessera.capabilities.inject.projections import Projections
from tessera.capabilities.row_hashes.capability import RowHashOptions
from tessera.capabilities.row_hashes.chain import row_hashes
from tessera.capabilities.token_ids.capability import TokenIdOptions
from tessera.capability import Server
from tessera.errors import BadFingerprint, BadRequest
from tessera.fields import read
from tessera.flags import Flags
from tessera_testing.carried import options

FLAGS = Flags(toploc_verification_topk=4)
ROWS = Server(rows=True, flags=FLAGS)
ALWAYS = Server(rows=True, flags=replace(FLAGS, toploc_verification=True))
GOOD = base64.b64encode(b"\xff\xd9" + bytes(8)).decode()
PREFILL = {"max_new_tokens": 0}
NAMES = (
    *("return_toploc_fingerprints", "toploc_verification_fingerprint_to_validate", "toploc_nonce"),
    *("return_input_ids", "return_output_ids", "return_row_hashes"),
)


class Fields(dict[str, Any]):
    """The fields of a request."""

    def __init__(self, wanted: object = None, claim: object = None, **others: object) -> None:
        super().__init__(dict.fromkeys(NAMES) | dict(zip(NAMES, (wanted, claim), strict=False)) | others)


def admit(fields: Fields, params: Any, server: Server, *, tail: int = 0, either_end: bool = False) -> Any:
    """Sampling parameters that carry what these fields ask for."""
    found, _ = admission.admit(fields, params, server, tail=tail, either_end=either_end)
    return found


def fingerprints(params: Any) -> FingerprintOptions | None:
    """What they carry about fingerprints."""
    return options(params).get("fingerprints")


@pytest.mark.parametrize(
    ("fields", "server", "expected"),
    [
        (Fields(), ROWS, None),
        (Fields(), ALWAYS, FingerprintOptions(topk=4)),
        (Fields(return_toploc_fingerprints=True), ROWS, FingerprintOptions(topk=4)),
        (Fields(return_toploc_fingerprints=False), ALWAYS, None),
        (Fields(return_toploc_fingerprints=True, toploc_nonce="n"), ROWS, FingerprintOptions("n", 4)),
        (Fields(toploc_nonce="n"), ALWAYS, FingerprintOptions("n", 4)),
    ],
)
def test_who_gets_fingerprints(fields: Fields, server: Server, expected: FingerprintOptions | None) -> None:
    """Who asks, and with --toploc-verification who does not say no; for each prompt of a batch."""
    given: list[Any] = [None, {}, [{}, {"temperature": 1}]]
    for params in given:
        admitted = admit(fields, params, server)
        each = admitted if isinstance(admitted, list) else [admitted]
        assert [fingerprints(one) for one in each] == [expected] * len(each)


def test_a_claim() -> None:
    """One string is the last fingerprint, a list all of them; with how many tokens were generated."""
    one = admit(Fields(None, GOOD), PREFILL, ROWS, tail=40)
    assert fingerprints(one) == FingerprintOptions(None, 4, GOOD, tail=40)
    every = admit(Fields(None, [GOOD] * 3), PREFILL, ALWAYS, tail=33, either_end=True)
    assert fingerprints(every) == FingerprintOptions(None, 4, (GOOD,) * 3, tail=33, either_end=True)
    shorter = admit(Fields(None, [GOOD] * 2), PREFILL, ROWS, tail=33, either_end=True)
    assert fingerprints(shorter) == FingerprintOptions(None, 4, (GOOD, GOOD), tail=33, either_end=True)
    assert [carry.take(claim).tail for claim in (one, every)] == [40, 33]
    assert carry.take(admit(Fields(True), {}, ROWS)).tail is None


@pytest.mark.parametrize(
    ("fields", "params", "error"),
    [
        (Fields(None, [GOOD] * 3), PREFILL, BadFingerprint),
        (Fields(None, []), PREFILL, BadFingerprint),
        (Fields(None, "/9k="), PREFILL, BadFingerprint),
        (Fields(None, base64.b64encode(b"\xff\xd9" + bytes(10)).decode()), PREFILL, BadFingerprint),
        (Fields(None, GOOD), {"max_new_tokens": 1}, BadRequest),
        (Fields(None, GOOD), {**PREFILL, "n": 2}, BadRequest),
        (Fields(None, GOOD), None, BadRequest),
        (Fields(None, GOOD), [PREFILL], BadRequest),
        (Fields(return_toploc_fingerprints="yes"), {}, BadRequest),
        (Fields(toploc_nonce=""), {}, BadRequest),
        (Fields(return_input_ids=1), {}, BadRequest),
        (Fields(return_output_ids="x"), {}, BadRequest),
        (Fields(return_row_hashes=True), {}, BadRequest),
        (Fields(return_row_hashes=7), {}, BadRequest),
    ],
)
def test_refused(fields: Fields, params: Any, error: type[BadRequest]) -> None:
    """Wrong count, malformed, too long for this server, a claim that generates, values of another kind."""
    with pytest.raises(error):
        admit(fields, params, ROWS)


def test_without_rows() -> None:
    """Asking names the flags; not request, and saying no, is fine."""
    bare = Server(rows=False, flags=FLAGS)
    assert admit(Fields(return_toploc_fingerprints=False, return_input_ids=False), {"n": 2}, bare) == {"n": 2}
    for name in NAMES:
        with pytest.raises(BadRequest, match=r"--enable-return-hidden-states or|true"):
            admit(Fields(**{name: True if name.startswith("return") else "x"}), {}, bare)


def test_ids_and_hashes() -> None:
    """They ride beside everything else."""
    server = replace(ROWS, deterministic=True)
    fields = Fields(return_input_ids=True, return_output_ids=True, return_row_hashes=True)
    ids = TokenIdOptions(input=True, output=True)
    assert options(admit(fields, {}, server)) == {"token_ids": ids, "row_hashes": RowHashOptions()}
    with pytest.raises(BadRequest, match="not together with return_hidden_states"):
        admit(Fields(return_row_hashes=True, return_hidden_states="last"), {}, server)


def test_row_hashes() -> None:
    """Each digest is over its chunk and the digest before it; one bit changes it and all that follow."""
    rows = bytes(range(256)) * 80  # 80 rows of 128 bfloat16
    found = row_hashes(rows, "bfloat16", (80, 128), prompt_tokens=10)
    digest = hashlib.sha256(b"tessera rows 1 bfloat16 128").digest()
    expected = []
    for start, end in ((0, 10), (10, 42), (42, 74), (74, 80)):
        digest = hashlib.sha256(digest + rows[256 * start : 256 * end]).digest()
        expected.append(digest.hex())
    assert found == expected
    changed = bytearray(rows)
    changed[256 * 45] ^= 1
    other = row_hashes(bytes(changed), "bfloat16", (80, 128), prompt_tokens=10)
    assert [a == b for a, b in zip(found, other, strict=True)] == [True, True, False, False]
    assert row_hashes(rows, "float16", (80, 128), prompt_tokens=10)[0] != found[0]


def test_prompt_and_response_as_one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the last token, which was never fed back; everything that is not one prompt of ids is refused."""
    monkeypatch.setattr(config, "active", config.Settings(vocabulary=100))
    assert append_output("input_ids", [1, 2], [3, 4, 5], GOOD) == ([1, 2, 3, 4], 2)
    assert append_output("input_ids", [1, 2], None, GOOD) == ([1, 2], 0)
    assert append_output("input_ids", [1, 2], [], GOOD) == ([1, 2], 0)
    assert append_output("text", "x", None, GOOD) == ("x", 0)
    assert append_output("text", ["x", "y"], None, None) == (["x", "y"], 0)
    refused: list[tuple[Any, Any, Any]] = [
        ([1], [2], None),
        ("x", [2], GOOD),
        ([], [2], GOOD),
        ([[1], [2]], None, GOOD),
        (["x", "y"], None, GOOD),
        ([1], [100], GOOD),
        ([100], [1], GOOD),
        ([1], "x", GOOD),
    ]
    for prompt, output_ids, claim in refused:
        with pytest.raises(BadRequest):
            append_output("input_ids", prompt, output_ids, claim)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("nonce", [None, "n"])
@pytest.mark.parametrize(
    "overrides", [None, {"positions": [0], "embeds": "AACAPw==", "shape": [1, 1], "dtype": "float32"}]
)
def test_one_claim_of_many_carries_what_its_fields_would(
    monkeypatch: pytest.MonkeyPatch, always: bool, nonce: str | None, overrides: Any
) -> None:
    """/v1/toploc/verify checks claims by itself: what rides to the scheduler is that of /generate."""
    monkeypatch.setattr(config, "active", config.Settings(rows=True, inject=True, hidden_size=1, vocabulary=9))
    flags = replace(config.flags, toploc_verification_topk=1, toploc_verification=always)
    monkeypatch.setattr(config, "flags", flags)
    monkeypatch.setattr(config, "injection", Model(True, torch.float32, 8, Projections(1, {}), 1e4, 2**20))
    each = [base64.b64encode(b"\xff\xd9\0\1").decode()] * 2
    body = {"input_ids": [1, 2], "output_ids": [3, 4, 5], "fingerprints": each, "nonce": nonce}
    requested = read({"claims": [body | {"input_embed_overrides": overrides}]}, ToplocVerifyRequest)
    claim = read_claim("c", requested.claims[0], 1, 9)
    fields = {CLAIM_FIELD: each, NONCE_FIELD: nonce, "input_embed_overrides": overrides}
    params, _ = admission.admit(fields, PREFILL, admission.server(), tail=2)
    own, other = carry.take(claim.params), carry.take(params)
    assert (own.wires, own.tail, own.prompt) == (other.wires, other.tail, other.prompt)
    assert {**claim.params, "custom_params": None} == {**params, "custom_params": None}
    assert carry.live(claim.params) is claim.live
    assert set(own.wires) == ({"fingerprints"} if overrides is None else {"fingerprints", "inject"})
