"""Which fields about fingerprints are admitted, and what rides to the scheduler for them."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from tessera import config
from tessera.admission import asked
from tessera.errors import BadFingerprint, BadRequest
from tessera.fingerprint.admission import Fields, Server, admit
from tessera.fingerprint.exact import row_hashes
from tessera.fingerprint.options import FingerprintOptions
from tessera.http.claims import joined

ROWS = Server(rows=True, always=False, topk=4)
ALWAYS = ROWS._replace(always=True)
GOOD = base64.b64encode(b"\xff\xd9" + bytes(8)).decode()
PREFILL = {"max_new_tokens": 0}


@pytest.mark.parametrize(
    ("fields", "server", "expected"),
    [
        (Fields(), ROWS, None),
        (Fields(), ALWAYS, FingerprintOptions()),
        (Fields(return_toploc_fingerprints=True), ROWS, FingerprintOptions()),
        (Fields(return_toploc_fingerprints=False), ALWAYS, None),
        (Fields(return_toploc_fingerprints=True, toploc_nonce="n"), ROWS, FingerprintOptions("n")),
        (Fields(toploc_nonce="n"), ALWAYS, FingerprintOptions("n")),
    ],
)
def test_who_gets_fingerprints(fields: Fields, server: Server, expected: FingerprintOptions | None) -> None:
    """Who asks, and with --toploc-verification who does not say no; for each prompt of a batch."""
    given: list[Any] = [None, {}, [{}, {"temperature": 1}]]
    for params in given:
        admitted = admit(fields, params, server)
        each = admitted if isinstance(admitted, list) else [admitted]
        assert [asked(one).fingerprints for one in each] == [expected] * len(each)


def test_what_was_admitted_stays() -> None:
    """SGLang makes requests of requests: a default does not overrule what the first of them said."""
    for said in (Fields(return_toploc_fingerprints=False), Fields(toploc_nonce="n")):
        once = admit(said, {}, ALWAYS)
        assert admit(Fields(), once, ALWAYS) == once


def test_a_claim() -> None:
    """One string is the last fingerprint, a list all of them; with how many tokens were generated."""
    one = asked(admit(Fields(None, GOOD), PREFILL, ROWS, tail=40))
    assert (one.claim, one.fingerprints) == (GOOD, FingerprintOptions(tail=40))
    every = asked(admit(Fields(None, [GOOD] * 3), PREFILL, ALWAYS, tail=33, either_end=True))
    assert (every.claim, every.fingerprints) == ((GOOD,) * 3, FingerprintOptions(tail=33, either_end=True))
    shorter = asked(admit(Fields(None, [GOOD] * 2), PREFILL, ROWS, tail=33, either_end=True))
    assert shorter.claim == (GOOD, GOOD)


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
    """Asking names the flags; not asking, and saying no, is fine."""
    bare = Server(rows=False, always=False, topk=4)
    assert admit(Fields(return_toploc_fingerprints=False, return_input_ids=False), {"n": 2}, bare) == {"n": 2}
    for name in Fields._fields:
        with pytest.raises(BadRequest, match=r"--enable-return-hidden-states or|true"):
            admit(Fields(**{name: True if name.startswith("return") else "x"}), {}, bare)


def test_ids_and_hashes() -> None:
    """They ride beside everything else."""
    server = ROWS._replace(deterministic=True)
    fields = Fields(return_input_ids=True, return_output_ids=True, return_row_hashes=True)
    admitted = asked(admit(fields, {}, server))
    assert (admitted.ids, admitted.hashes) == (("input", "output"), True)
    assert admitted.states is not None
    with pytest.raises(BadRequest, match="not together with return_hidden_states"):
        admit(fields, admit(fields, {}, server), server)


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
    assert joined("input_ids", [1, 2], [3, 4, 5], GOOD) == ([1, 2, 3, 4], 2)
    assert joined("input_ids", [1, 2], None, GOOD) == ([1, 2], 0)
    assert joined("input_ids", [1, 2], [], GOOD) == ([1, 2], 0)
    assert joined("text", "x", None, GOOD) == ("x", 0)
    assert joined("text", ["x", "y"], None, None) == (["x", "y"], 0)
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
            joined("input_ids", prompt, output_ids, claim)
