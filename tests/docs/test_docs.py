"""README.md and docs/: the examples run, what is generated is up to date, and what is named exists."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tessera import errors
from tessera.launching.command import environment
from tessera.launching.server import Server
from tessera_testing import trials_page
from tessera_testing.page_tables import OPENAPI, SNIPPET, TABLES, TRIED, generated, openapi
from tessera_testing.pages import (
    ADDRESS,
    CUT,
    DOCS,
    FENCE,
    GENERATED,
    PAGES,
    ROOT,
    Block,
    anchors,
    blocks,
    by_hand,
    prose,
)
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.tiny import TINY

SITUATIONS = ROOT / "tests" / "engine_cpu"
"""Where the tests lie that docs/reference/exactness.md names without a folder."""
FOLDERS = ("python", "patches", "sgl-kernel", "tests", "benchmarks", "docs", "examples", ".ci")

MODEL = '"MODEL"'
"""What stands for a model in Python; the tiny one is put in its place."""
OWN_SERVERS = {"docs/guide/injection.md": "injecting"}
"""The fixture with the server that the examples of a page need, where the plain one will not do."""
ELSEWHERE = "docs/guide/tools.md"
"""Its examples are run by tests/clients, where each tool is; what they print is compared with the page there, too."""
LANGUAGES = {"", "bash", "console", "javascript", "json", "python", "shell", "text"}
"""``bash`` and ``python`` are run; ``shell`` and ``console`` by line (test_commands.py); the others are shown."""

ARCHITECTURE = "docs/design/architecture.md"
WORDS, README_LINES, ARCHITECTURE_LINES, FIRST_FILES_LINES = 18_000, 120, 200, 1_500
"""The most that is written by hand, code included; what is generated, and the log, come on top."""

every_page = pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))


EXAMPLES = list(blocks("bash", "python"))
RUN = [example for example in EXAMPLES if example.page != ELSEWHERE]


def run(example: Block, address: str, folder: Path, interpreter: Interpreter) -> str:
    """What an example prints; it runs as it stands, but for the address of the server and the model."""
    if f"# not in SGLang {version('sglang')}" in example.code:
        pytest.skip("the page says that this SGLang cannot")
    if example.language == "bash" and not shutil.which("curl"):
        pytest.skip("needs curl")
    command = [sys.executable, "-c"] if example.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    code = example.code.replace(ADDRESS, address).replace(MODEL, repr(str(TINY)))
    if "import sglang" in code:
        code = code.replace("import sglang\n", _WITHOUT_GPU).replace("Engine(", "Engine(**CPU, ")
        ended = interpreter.finish(("-c", code), environment({}), folder, 280)  # its imports take half a minute
    else:
        ended = subprocess.run(
            [*command, code], cwd=folder, env=environment({}), capture_output=True, text=True, timeout=280, check=False
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


_WITHOUT_GPU = """\
from sglang.srt.plugins import load_plugins
load_plugins()
import sglang
CPU = {"device": "cpu", "attention_backend": "torch_native", "mem_fraction_static": 0.9, "max_total_tokens": 8192}
"""


def check(example: Block, printed: str) -> None:
    """It is what the page says."""
    if example.shown_as == "text":
        assert example.shows(printed), f"the page shows\n{example.shown}"
    elif example.shown_as == "json":
        found = json.loads(printed)
        assert matches(json.loads(example.shown), found), f"the page shows\n{example.shown}\nthe server says\n{found}"
    else:
        assert not printed, f"{example.place} prints something: show it in a block of text or json right after it"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("example", "which"),
    [pytest.param(one, OWN_SERVERS.get(one.page, "server"), id=one.place) for one in RUN if ADDRESS in one.code],
)
def test_example(
    example: Block, which: str, tmp_path: Path, interpreter: Interpreter, request: pytest.FixtureRequest
) -> None:
    """It runs as it stands, and gives what the page says."""
    server: Server = request.getfixturevalue(which)
    check(example, run(example, server.url, tmp_path, interpreter))


@pytest.mark.engine
@pytest.mark.parametrize("example", [pytest.param(one, id=one.place) for one in RUN if ADDRESS not in one.code])
def test_example_without_a_server(example: Block, tmp_path: Path, interpreter: Interpreter) -> None:
    """The same for those that need none."""
    check(example, run(example, ADDRESS, tmp_path, interpreter))


@pytest.mark.parametrize(
    "example", [pytest.param(one, id=one.place) for one in blocks("python", "javascript") if one.page == ELSEWHERE]
)
def test_example_that_is_run_elsewhere(example: Block) -> None:
    """It shows what it prints; Python is Python."""
    prints = re.search(r"^(print|console\.log)\(", example.code, re.MULTILINE) is not None
    assert (example.shown_as == "text" and example.shown != "") == prints
    if example.language == "python":
        compile(example.code, example.place, "exec")


def matches(shown: Any, found: Any) -> bool:
    """Whether an answer is what a page shows, where fields may be missing and numbers of a vector are rounded.

    A number with a fraction that stands alone, as a time, may be another.
    """
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(key in found and matches(shown[key], found[key]) for key in shown)
    if isinstance(shown, list):
        if shown and all(isinstance(one, float) for one in shown):
            return bool(found == pytest.approx(shown, abs=0.006))
        return isinstance(found, list) and len(shown) == len(found) and all(map(matches, shown, found))
    return bool(shown in (CUT, found) or (isinstance(shown, float) and math.isfinite(found)))


def test_tried_options() -> None:
    """The page of what became of refused options is what the results say."""
    assert TRIED.read_text() == trials_page.page()


@every_page
def test_blocks(page: Path) -> None:
    """Every block has a language of which it is known whether it is run."""
    assert {language for _, language, _ in FENCE.findall(page.read_text())} <= LANGUAGES


def test_what_is_written_by_hand() -> None:
    """Nobody reads more."""
    words = sum(len(re.findall(r"\S*[A-Za-z0-9]\S*", by_hand(page))) for page in PAGES.values())
    assert words <= WORDS, f"{words:,} words"
    assert len(PAGES["README.md"].read_text().splitlines()) <= README_LINES
    assert len(PAGES[ARCHITECTURE].read_text().splitlines()) <= ARCHITECTURE_LINES


def test_files_to_read_first() -> None:
    """The eight that the page on the architecture lists are read in an hour."""
    listed = PAGES[ARCHITECTURE].read_text().partition("## Eight files to read")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w/]+\.py)`", listed)
    assert len(files) == len(set(files)) == 8
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) <= FIRST_FILES_LINES


@every_page
def test_generated(page: Path) -> None:
    """What is generated is up to date; ``python -m tessera_testing.page_tables`` writes it again."""
    text = page.read_text()
    assert text == generated(text)


def test_everything_generated_has_its_page() -> None:
    """A marker that was misspelt would never be filled."""
    found = [match[1] for page in PAGES.values() for match in GENERATED.finditer(page.read_text())]
    assert sorted(name for name in found if not name.startswith(SNIPPET)) == sorted(TABLES)
    assert sum(page.read_text().count("\n<!-- generated: ") for page in PAGES.values()) == len(found)


def test_error_codes() -> None:
    """Every code that travels over HTTP is in the generated table."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.code for kind in kinds if issubclass(kind, errors.TesseraError)} | errors.OF_ROWS
    rows = re.findall(r"^\| `(\w+)` \| \d+ \|", (DOCS / "reference/errors.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(codes - {"tessera_error", "start_refused"})


@every_page
def test_links(page: Path) -> None:
    """Every relative link leads to a file, and its anchor to a heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not re.match(r"\w+:", link):
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@every_page
def test_paths(page: Path) -> None:
    """Every file that is named in backticks exists, and every test in it."""
    path = Path()
    for named in re.findall(r"`([^`\s]+)`", prose(page)):
        file, _, test = named.partition("::")
        if file:
            path = SITUATIONS / file if re.fullmatch(r"test_\w+\.py", file) else ROOT / file
        if path.parent == SITUATIONS or (file.split("/")[0] in FOLDERS and "/" in file) or test:
            assert path.exists(), named
            assert not test or f"def {test}(" in path.read_text(), named


def test_pages_that_the_code_names() -> None:
    """Docstrings and messages lead somewhere."""
    for folder in ("python", "patches", "sgl-kernel", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for named in re.findall(r"\bdocs/[\w/.-]+\.(?:md|json|toml)", path.read_text()):
                assert (ROOT / named).is_file(), f"{path}: {named}"


def test_openapi() -> None:
    """The page says what the schemas of the options say."""
    assert OPENAPI.read_text() == openapi()
