"""The snippets of other clients, each in its own environment, against a real server: ``make test-clients``.

What they print is not enough: the vectors that they hold are those of a plain request.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tessera.launching.server import Server
from tessera_testing.pages import ROOT

pytestmark = pytest.mark.clients
INSTALLED = ROOT / ".clients"
URL = "http://localhost:30000"
SECONDS = 180


class Snippet(NamedTuple):
    """A file of ``docs/snippets``, and where it has its vectors.

    Attributes:
        generated: an expression, the vector of the chat's answer; None where the client drops it.
        embedded: an expression, the vector of the text ``import os``; None where the client has no such call.
    """

    generated: str | None
    embedded: str | None = None


SNIPPETS = {
    "openai_python.py": Snippet("answer.choices[0].embedding"),
    "openai_node.mjs": Snippet("answer.choices[0].embedding"),
    "langchain.py": Snippet(None, "embeddings.embed_query('import os')"),
    "langchain_js.mjs": Snippet("choice.embedding", "await embeddings.embedQuery('import os')"),
    "litellm.py": Snippet("answer.choices[0].provider_specific_fields['embedding']"),
    "llamaindex.py": Snippet("answer.raw.choices[0].embedding", "embedding.get_text_embedding('import os')"),
}


def command(name: str) -> list[str]:
    """What runs the code of a snippet, which comes last. Node finds packages beside the folder that it runs in."""
    if name.endswith(".py"):
        return [str(INSTALLED / "venv/bin/python"), "-c"]
    if not (INSTALLED / "node_modules").exists():
        pytest.skip("npm installed nothing here")
    return ["node", "--input-type=module", "--eval"]


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(server: Server, name: str) -> None:
    """It prints no ``False``, and has the vectors that a plain request has."""
    snippet, python = SNIPPETS[name], name.endswith(".py")
    code = (ROOT / "docs/snippets" / name).read_text().replace(URL, server.url)
    wanted = [one for one in snippet if one is not None]
    dumped = ", ".join(wanted)
    code += f"import json\nprint(json.dumps([{dumped}]))\n" if python else f"console.log(JSON.stringify([{dumped}]));\n"
    ran = subprocess.run(
        [*command(name), code], cwd=INSTALLED, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    *printed, vectors = ran.stdout.splitlines()
    assert printed
    assert "false" not in " ".join(printed).lower()
    expected = [
        *([generated(server)] if snippet.generated else []),
        *([embedded(server)] if snippet.embedded else []),
    ]
    found: list[Any] = json.loads(vectors)
    for one, plain in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, plain, rtol=0, atol=1e-5 * np.abs(plain).max())


def generated(server: Server) -> list[float]:
    """The vector of the snippets' chat, by a plain request."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "def add(a, b):"}], "max_tokens": 8}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "return_embedding": True}, timeout=SECONDS)
    vector: list[float] = answer.raise_for_status().json()["choices"][0]["embedding"]
    return vector


def embedded(server: Server) -> list[float]:
    """The vector of their text, by a plain request."""
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "tiny", "input": "import os"}, timeout=SECONDS)
    vector: list[float] = answer.raise_for_status().json()["data"][0]["embedding"]
    return vector
