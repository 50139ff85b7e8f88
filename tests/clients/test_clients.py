"""The snippets of other clients, each in its own process, against a real server: ``make test-clients``.

They print what the page shows. That is not enough: vectors that they hold, and scores that they compute, are those of
plain requests.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from tessera.launching.server import Server
from tessera_testing.pages import ROOT, blocks

pytestmark = pytest.mark.clients
FOLDER = ROOT / "docs/snippets"
PRINTED = "printed.toml"
INSTALLED = ROOT / ".clients"
NODE = (INSTALLED / "node_modules").exists()
URL = "http://localhost:30000"
SECONDS = 180
TEXTS = ["import os", "class Stack:"]
"""What the snippets embed; those with one text have the first."""


def post(url: str, route: str, **body: Any) -> Any:
    """The answer to a plain request."""
    answer = httpx.post(f"{url}{route}", json={"model": "tiny", **body}, timeout=SECONDS)
    return answer.raise_for_status().json()


def chat(url: str, text: str = "def add(a, b):") -> Any:
    """The answer to the snippets' chat."""
    messages = [{"role": "user", "content": text}]
    return post(url, "/v1/chat/completions", messages=messages, max_tokens=8, temperature=0, return_embedding=True)


def generated(url: str) -> list[float]:
    """The vector of the chat, [H]."""
    vector: list[float] = chat(url)["choices"][0]["embedding"]
    return vector


def vectors(url: str, **options: Any) -> npt.NDArray[np.float64]:
    """The vectors of both texts, [2, H]."""
    return np.array([one["embedding"] for one in post(url, "/v1/embeddings", input=TEXTS, **options)["data"]])


def embedded(url: str) -> npt.NDArray[np.float64]:
    """The vector of the first text, [H]."""
    return np.asarray(vectors(url)[0], np.float64)


def unit(url: str) -> npt.NDArray[np.float64]:
    """The vectors of both texts, at length one, [2, H]."""
    return vectors(url, normalize=True)


def cosines(url: str) -> npt.NDArray[np.float64]:
    """What is nearest to the first text comes first: itself, and the other, [2]."""
    both = unit(url)
    return np.asarray(both @ both[0], np.float64)


def distances(url: str) -> npt.NDArray[np.float64]:
    """The same as squared distances of the vectors as they are, [2]."""
    both = vectors(url)
    return np.asarray(((both - both[0]) ** 2).sum(axis=1), np.float64)


def usage(url: str) -> list[int]:
    """Tokens of the prompt and of the answer."""
    counts = chat(url)["usage"]
    return [counts["prompt_tokens"], counts["completion_tokens"]]


Check = Callable[[str], Any]
EVENT = "event.call.response['choices'][0]['embedding']"
SNIPPETS: dict[str, dict[str, Check]] = {
    "dspy.py": {"lm.history[-1]['response'].choices[0].provider_specific_fields['embedding']": generated},
    "faiss.py": {"index.reconstruct_n(0, 2).tolist()": unit, "index.search(vectors[:1], 2)[0][0].tolist()": cosines},
    "haystack.py": {"embedder.run('import os')['embedding']": embedded},
    "inspect_ai.py": {EVENT: generated},
    "instructor.py": {
        "answer._raw_response.choices[0].embedding": lambda url: chat(url, "Name a colour.")["choices"][0]["embedding"],
    },
    "lancedb.py": {
        "table.to_arrow()['vector'].to_pylist()": vectors,
        "[row['_distance'] for row in table.search('import os').to_list()]": distances,
    },
    "langchain.py": {"embeddings.embed_query('import os')": embedded},
    "langchain_js.mjs": {"choice.embedding": generated, "await embeddings.embedQuery('import os')": embedded},
    "litellm.py": {"answer.choices[0].provider_specific_fields['embedding']": generated},
    "llamaindex.py": {
        "answer.raw.choices[0].embedding": generated,
        "embedding.get_text_embedding('import os')": embedded,
    },
    "mteb.py": {
        "Served().encode([{'text': ['import os', 'class Stack:']}]).tolist()": unit,
        "isinstance(Served(), mteb.models.models_protocols.EncoderProtocol)": lambda _: True,
    },
    "openai_node.mjs": {"answer.choices[0].embedding": generated},
    "openai_python.py": {"answer.choices[0].embedding": generated},
    "outlines.py": {},
    "pydantic_ai.py": {"[result.usage.input_tokens, result.usage.output_tokens]": usage},
    "qdrant.py": {
        "[one.vector for one in store.retrieve('code', [0, 1], with_vectors=True)]": unit,
        "[one.score for one in store.query_points('code', vectors[0]).points]": cosines,
    },
}
"""Expressions of what a snippet has in the end, and what a plain request says that they are."""


def command(name: str) -> list[str]:
    """What runs the code of a snippet, which comes last. Node finds packages beside the folder that it runs in."""
    path = Path(name)
    if path.suffix == ".py":
        own = INSTALLED / path.stem
        return [str((own if own.exists() else INSTALLED / "venv") / "bin/python"), "-c"]
    return ["node", "--input-type=module", "--eval"]


def run(words: list[str], folder: Path) -> str:
    """What a program prints; it finds its own packages only, none of what tests put in the place of some."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-2000:]
    return ran.stdout


@pytest.fixture(scope="module")
def running(server: Server) -> Iterator[dict[str, Future[str]]]:
    """What each snippet prints, and what it has in the end; two run at a time, for most of it is imports."""

    def begin(pool: ThreadPoolExecutor, name: str) -> Future[str]:
        dumped = ", ".join(SNIPPETS[name])
        javascript = f"console.log(JSON.stringify([{dumped}]));\n"
        code = (FOLDER / name).read_text().replace(URL, server.url)
        code += f"import json\nprint(json.dumps([{dumped}]))\n" if name.endswith(".py") else javascript
        return pool.submit(run, [*command(name), code], INSTALLED)

    with ThreadPoolExecutor(2) as pool:
        yield {name: begin(pool, name) for name in SNIPPETS if NODE or name.endswith(".py")}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(running: dict[str, Future[str]], server: Server, name: str) -> None:
    """It prints what the page shows, and has what plain requests have."""
    if name not in running:
        pytest.skip("npm installed nothing here")
    checks = SNIPPETS[name]
    (shown,) = (one for one in blocks("python", "javascript") if one.code == (FOLDER / name).read_text())
    printed, last = running[name].result().removesuffix("\n").rsplit("\n", 1)
    assert shown.shows(f"{printed}\n"), printed
    for found, plain in zip(json.loads(last), checks.values(), strict=True):
        expected = np.array(plain(server.url), np.float64)
        np.testing.assert_allclose(np.array(found, np.float64), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_locust(server: Server, tmp_path: Path) -> None:
    """The command in its first line sends requests, none of which fails, and gets vectors."""
    shutil.copy(FOLDER / "locust.py", tmp_path / "locustfile.py")
    first = (FOLDER / "locust.py").read_text().partition("\n")[0]
    program, *words = shlex.split(first.removeprefix("# ").replace(URL, server.url).replace("1m", "5s"))
    more = ["--json", "--skip-log", "--stop-timeout", "60"]  # at the end, each user waits for an answer
    (route,) = json.loads(run([str(INSTALLED / "venv/bin" / program), *words, *more], tmp_path))
    assert route["num_requests"] > route["num_failures"] == 0
    digits = len(json.dumps(embedded(server.url).tolist())) / 2
    assert route["total_content_length"] > digits * route["num_requests"]


def test_every_snippet_is_run() -> None:
    """A new one gets its check."""
    assert sorted([*SNIPPETS, "locust.py", PRINTED]) == sorted(path.name for path in FOLDER.iterdir())
