"""Messages: what stands in the place of a value, and what is one."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import tessera
import tessera_patches
from tessera import errors, limits, request_fields, sampling
from tessera.capabilities.fingerprints import claims
from tessera.capabilities.fingerprints import options as fingerprint_options
from tessera.capabilities.inject.options import FIELD as OVERRIDES
from tessera.capabilities.inject.options import InjectFields
from tessera.capabilities.states.options import StateFields
from tessera.errors import BadRequest, Described
from tessera.fields import read
from tessera.http import body

FOLDERS = [Path(str(package.__file__)).parent for package in (tessera, tessera_patches)]
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
"""What says which limits are which status."""
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BadRequest)}


def test_descriptions_are_shown_without_quotes() -> None:
    """A text of the client has them."""
    assert str(BadRequest("text", "2 prompts", "one")) == "text: got '2 prompts'; allowed: one"
    assert str(BadRequest("text", Described("2 prompts"), "one")) == "text: got 2 prompts; allowed: one"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_texts_that_we_write_are_described(folder: Path) -> None:
    """A text in the source, in the place of a value, is none that a client sent."""
    places = [place for path in sorted(folder.rglob("*.py")) for place in _written_values(path)]
    assert not places


def _written_values(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in KINDS or len(node.args) < 2:
            continue
        value = node.args[1]
        if isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            yield f"{path.name}:{value.lineno}: {ast.unparse(value)}"


VECTOR = {"positions": [0], "embeds": [[1.0] * 8]}


class Claims:
    """A request with many claims."""

    async def stream(self) -> AsyncIterator[bytes]:
        """In one piece."""
        yield json.dumps({"claims": [{}] * (limits.MAX_CLAIMS + 1)}).encode()


async def _no_engine(_: list[claims.Claim]) -> list[dict[str, object] | claims.Unverifiable]:
    return []


def _no_tokenizer(*_: object) -> claims.Unverifiable:
    return claims.Unverifiable("no tokenizer")


TOO_MANY = {"return_hidden_states": {"positions": [0] * (limits.MAX_POSITIONS + 1)}}

EXCEEDED: dict[str, Callable[[], object]] = {
    "MAX_CLAIMS": lambda: asyncio.run(claims.verify(Claims(), _no_engine, _no_tokenizer, 8, 32)),
    "MAX_FINGERPRINTS": lambda: fingerprint_options.parse_claim("f", ["x"] * 32_769, 128, limits.MAX_FINGERPRINTS),
    "MAX_INPUTS": lambda: body.strings("input", ["x"] * (limits.MAX_INPUTS + 1)),
    "MAX_NONCE_CHARACTERS": lambda: read({"toploc_nonce": "x" * 129}, fingerprint_options.FingerprintFields),
    "MAX_OVERRIDES": lambda: read({OVERRIDES: [VECTOR] * (limits.MAX_OVERRIDES + 1)}, InjectFields),
    "MAX_POSITIONS": lambda: read(TOO_MANY, StateFields),
    "MAX_SAMPLES": lambda: request_fields._check_samples({"n": 2}, limits.MAX_SAMPLES // 2 + 1),
    "MAX_PATTERN_CHARACTERS": lambda: sampling.check({"stop_regex": "x" * (limits.MAX_PATTERN_CHARACTERS + 1)}, 32),
    "MAX_STOPS": lambda: sampling.check({"stop": ["x"] * (limits.MAX_STOPS + 1)}, 32),
    "MAX_STOP_CHARACTERS": lambda: sampling.check({"stop": "x" * (limits.MAX_STOP_CHARACTERS + 1)}, 32),
    "an `n`": lambda: sampling.check({"n": limits.MAX_SAMPLES + 1}, 32),
    "MAX_TOKEN_CHARACTERS": lambda: read({OVERRIDES: VECTOR | {"token": "x" * 257}}, InjectFields),
}
"""By what the page calls each limit: something that exceeds it by one."""


@pytest.mark.parametrize("limit", EXCEEDED)
def test_the_page_says_what_status_a_limit_has(limit: str) -> None:
    """413 in the list, 400 below it."""
    _, section = PAGE.split("## Limits\n")
    large, others = section.split("## ")[0].split("The others bound")
    with pytest.raises(BadRequest) as refused:
        EXCEEDED[limit]()
    assert refused.value.status == (400 if limit in others.split("itself above")[0] else 413)
    assert limit in (large if refused.value.status == 413 else others)
