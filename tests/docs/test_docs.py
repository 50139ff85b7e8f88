"""README.md and docs/: the examples run, the generated tables are up to date, and what is named exists.

``python tests/docs/test_docs.py`` writes the generated tables anew.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import EnumType
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest

from tessera import errors
from tessera.embed.options import EmbedOptions
from tessera.http.schema import document
from tessera.inject import refusals as injection_refusals
from tessera.launching.server import Server
from tessera.rows.refusals import REFUSALS
from tessera_patches.core import lock

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOG = DOCS / "design" / "log"
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if LOG not in path.parents)]
FOLDERS = ("python", "patches", "sgl-kernel", "tests", "benchmarks", "docs", ".ci")

ADDRESS = "http://127.0.0.1:30000"
"""What examples talk to; a test puts its own server in its place."""
OWN_SERVERS = {"injection.md": "injecting"}
"""The fixture with the server that the examples of a page need, where the plain one will not do."""
CUT = "…"
"""Stands for anything in an answer that a page shows."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"(?<=<!-- generated: )(\w+) -->\n(.*?)(?=<!-- end -->)", re.DOTALL)


class Example(NamedTuple):
    """A block of a page that talks to a server, and the block behind it that shows what comes back."""

    place: str
    language: str
    code: str
    shown_as: str
    shown: str


def examples(page: Path) -> Iterator[Example]:
    """The examples of a page, in order."""
    text = page.read_text()
    blocks = list(FENCE.finditer(text))
    for block, behind in itertools.zip_longest(blocks, blocks[1:]):
        language, code = block.groups()
        if language in {"python", "bash"} and ADDRESS in code:
            follows = behind is not None and not text[block.end() : behind.start()].strip()
            shown_as, shown = behind.groups() if follows and behind else ("", "")
            place = f"{page.name}:{text.count(chr(10), 0, block.start()) + 1}"
            yield Example(place, language, code, *((shown_as, shown) if shown_as in {"json", "text"} else ("", "")))


EXAMPLES = [example for page in PAGES for example in examples(page)]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("example", "which"),
    [pytest.param(one, OWN_SERVERS.get(one.place.split(":")[0], "server"), id=one.place) for one in EXAMPLES],
)
def test_example(example: Example, which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It runs as it stands, and gives what the page says."""
    server: Server = request.getfixturevalue(which)
    if example.language == "bash" and not shutil.which("curl"):
        pytest.skip("needs curl")
    command = [sys.executable, "-c"] if example.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    code = example.code.replace(ADDRESS, server.url)
    run = subprocess.run([*command, code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    if example.shown_as == "text":
        assert run.stdout == example.shown
    elif example.shown_as == "json":
        found = json.loads(run.stdout)
        assert matches(json.loads(example.shown), found), f"the page shows\n{example.shown}\nthe server says\n{found}"
    elif example.language == "bash":
        assert "error" not in json.loads(run.stdout), run.stdout


def matches(shown: Any, found: Any) -> bool:
    """Whether an answer is what a page shows: fields may be missing there, and numbers with a fraction may differ."""
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(key in found and matches(shown[key], found[key]) for key in shown)
    if isinstance(shown, list):
        return isinstance(found, list) and len(shown) == len(found) and all(map(matches, shown, found))
    return bool(shown in (CUT, found) or (isinstance(shown, float) and isinstance(found, float)))


def test_every_example_of_the_page_is_run() -> None:
    """A block that looks like an example and talks to no server would be left out."""
    blocks = FENCE.findall((DOCS / "guide/embeddings.md").read_text())
    run = [example.code for example in EXAMPLES if example.place.startswith("embeddings.md")]
    assert [code for language, code in blocks if language in {"python", "bash"}] == run


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body]) + "\n"


def refusals() -> str:
    """Options that are refused at start."""
    return table(("option", "why"), *((f"`{refusal.option}`", refusal.why) for refusal in REFUSALS))


def injection() -> str:
    """Options that are refused beside injection."""
    return table(("option", "why"), *((f"`{refusal.option}`", refusal.why) for refusal in injection_refusals.REFUSALS))


def runners() -> str:
    """One line for each value of SGLang's enum of MoE runners."""
    entries = tomllib.loads((DOCS / "reference/moe_runners.toml").read_text())["runner"]
    keys = ("hardware", "parallelism", "quantization", "state", "measured")
    head = ("`--moe-runner-backend`", "what it is for", *keys[:3], "state in SGLang 0.5.17", "our figures")
    return table(head, *((f"`{one['name']}`", one["what"], *(one[key] for key in keys)) for one in entries))


def versions() -> str:
    """Supported SGLang versions: those that have a lock file."""
    rows = [
        (version, f"[{version}.json](../../patches/tessera_patches/locks/{version}.json)", str(len(lock.load(version))))
        for version in lock.supported_versions()
    ]
    return table(("SGLang", "lock file", "functions and classes in it"), *rows)


def limits() -> str:
    """Maxima with their reasons, which are the docstrings behind them."""
    source = (ROOT / "python/tessera/limits.py").read_text()
    values: dict[str, Any] = {}
    exec(compile(source, "limits.py", "exec"), values)  # noqa: S102 - the file as it is, not as it was imported
    body = ast.parse(source).body
    rows = [
        (f"`{target.id}`", f"{values[target.id]:,}", " ".join(str(reason.value.value).split()))
        for assignment, reason in itertools.pairwise(body)
        if isinstance(assignment, ast.Assign) and isinstance(target := assignment.targets[0], ast.Name)
        if isinstance(reason, ast.Expr) and isinstance(reason.value, ast.Constant)
    ]
    return table(("limit", "value", "why"), *rows)


TABLES: dict[str, Callable[[], str]] = {
    "refusals": refusals,
    "injection": injection,
    "versions": versions,
    "limits": limits,
    "runners": runners,
}


def generated(text: str) -> str:
    """The page with its generated tables as they must be."""
    return GENERATED.sub(lambda match: f"{match[1]} -->\n{TABLES[match[1]]()}", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_tables(page: Path) -> None:
    """What is generated is up to date; ``python tests/docs/test_docs.py`` writes it anew."""
    text = page.read_text()
    assert text == generated(text)


def test_every_table_has_its_page() -> None:
    """A marker that was misspelt would never be filled."""
    found = [match[1] for page in PAGES for match in GENERATED.finditer(page.read_text())]
    assert sorted(found) == sorted(TABLES)


def test_options() -> None:
    """The table of options has each key, its default, and each allowed value."""
    options = (DOCS / "guide/embeddings.md").read_text().split("| key | default |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+)$", options, re.MULTILINE))
    types = get_type_hints(EmbedOptions)
    assert list(rows) == [field.name for field in fields(EmbedOptions)]
    for field in fields(EmbedOptions):
        default = field.default if isinstance(field.default, str) else json.dumps(field.default)
        assert rows[field.name].startswith(f"`{default}` |"), field.name
        if isinstance(types[field.name], EnumType):
            assert ", ".join(f"`{value}`" for value in types[field.name]) in rows[field.name]


def test_error_codes() -> None:
    """Every code of tessera.errors has a row, with its status, and no code is there that is gone."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.code: kind.status for kind in kinds if issubclass(kind, errors.TesseraError)}
    constants = [value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)]
    codes |= {code: errors.RequestFailed(code, "").status for code in constants}
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", (DOCS / "reference/errors.md").read_text(), re.MULTILINE))
    assert rows.pop("start_refused") == "none"  # it never travels over HTTP
    assert rows == {code: str(status) for code, status in codes.items() if code != "start_refused"}


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    """Every relative link leads to a file, and its anchor to a heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not re.match(r"\w+:", link):
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths(page: Path) -> None:
    """Every file that is named in backticks exists, and every test in it."""
    for named in re.findall(r"`([^`\s]+)`", prose(page)):
        path, _, test = named.partition("::")
        if path.split("/")[0] in FOLDERS and "/" in path:
            assert (ROOT / path).exists(), named
            assert not test or f"def {test}(" in (ROOT / path).read_text(), named


def test_metrics() -> None:
    """docs/reference/metrics.md has each metric, and none that is gone."""
    source = "".join((ROOT / "python/tessera" / name).read_text() for name in ("metrics.py", "tilespec/tally.py"))
    named = {f"tessera:{name}" for name in re.findall(r'(?:counter|gauge)\(\s*"(\w+)"', source)}
    page = (DOCS / "reference/metrics.md").read_text()
    assert set(re.findall(r"^\| `(tessera:\w+)` \|", page, re.MULTILINE)) == named


def openapi() -> str:
    """The page docs/reference/openapi.json."""
    return json.dumps(document(), indent=1) + "\n"


def test_openapi() -> None:
    """docs/reference/openapi.json says what the schemas of the options say."""
    assert (DOCS / "reference/openapi.json").read_text() == openapi()


if __name__ == "__main__":
    (DOCS / "reference/openapi.json").write_text(openapi())
    for path in PAGES:
        path.write_text(generated(path.read_text()))
