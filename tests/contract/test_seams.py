"""The seams against the installed SGLang, without starting it."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tessera.capabilities.inject import refusals as injection
from tessera.cli import main
from tessera.config import CONDITIONS, FEATURES
from tessera.errors import StartRefused
from tessera.launching.command import environment
from tessera.refusal import field_of
from tessera.rows.refusals import REFUSALS
from tessera_patches import support
from tessera_patches.core import apply, lock, source
from tessera_patches.core.seam import Guard, Phase, Runs, Seam
from tessera_patches.inventory import DECLARED, SEAMS, at
from tessera_testing import seams_page
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.version_reach import READS, differing_themselves, reached

ROOT = Path(__file__).parents[2]
ADAPTER = "tessera_patches.engine"


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.target.rsplit(".", 1)[1])
def test_matches_the_lock(seam: Seam) -> None:
    """Parameters, body where we rely on it, and the callers that must reach it."""
    assert lock.mismatches(seam, lock.load(lock.installed_version())) == []


@pytest.mark.parametrize("version", lock.supported_versions())
def test_the_lock_holds_the_inventory_and_no_more(version: str) -> None:
    """A seam that went away leaves no entry."""
    assert set(lock.load(version)) == {path for seam in at(version) for path in seam.guards}


@pytest.mark.parametrize("version", lock.supported_versions())
def test_one_module_owns_one_target(version: str) -> None:
    """SGLang silently drops a second hook on a target that is already patched."""
    targets = [seam.target for seam in at(version) if seam.registered]
    assert len(set(targets)) == len(targets)


@pytest.mark.parametrize("seam", DECLARED, ids=lambda one: one.name)
def test_by_when_a_seam_is_reached_is_said(seam: Seam) -> None:
    """Or, where nothing shows it, who comes to it."""
    assert bool(seam.called_by) == (seam.runs is Runs.ON_DEMAND)
    assert {*filter(None, seam.runs_with.split(", "))} <= {*FEATURES, *CONDITIONS}
    assert not (seam.runs_with and seam.called_by)


def test_names_are_of_one_seam() -> None:
    """Counts and refusals have them."""
    for version in lock.supported_versions():
        names = [seam.name for seam in at(version)]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("version", lock.supported_versions())
def test_what_need_not_be_called_has_a_locked_caller(version: str) -> None:
    """Or something locked that hands it out; but what users call, or Python."""
    registered = [seam for seam in at(version) if seam.registered and seam.runs is Runs.ON_DEMAND]
    without = {seam.target.partition("sglang.srt.")[2] for seam in registered if not (seam.callers or seam.relied)}
    by_python = {target for target in without if target.endswith(".ServerArgs.__post_init__")}
    assert without - by_python == {f"entrypoints.engine.Engine.{name}" for name in ("generate", "async_generate")}


def test_who_hands_a_function_on_reaches_it() -> None:
    """In a table of handlers, or as the target of a thread; whoever only names it does not."""
    table, thread, other = (
        ast.parse(f"def f(self):\n    {line}").body[0]
        for line in ("return [(int, self.handle)]", "Thread(target=handle)", "handle = self.handle")
    )
    assert isinstance(table, ast.FunctionDef)
    assert isinstance(thread, ast.FunctionDef)
    assert isinstance(other, ast.FunctionDef)
    assert [source.passes_on(one, "handle") for one in (table, thread, other)] == [True, True, False]


def test_a_place_is_changed_once_by_each() -> None:
    """Two entries of one handler on one target would be the same one twice."""
    places = [(seam.target, seam.handler, seam.hook) for seam in SEAMS]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.handler)
def test_the_handler_exists(seam: Seam) -> None:
    """Its module defines it."""
    assert handler_of(seam) is not None


def handler_of(seam: Seam) -> source.Definition | None:
    """The handler's definition, without importing it."""
    module, name = seam.handler.split(":")
    spec = find_spec(module)
    assert spec is not None
    tree = ast.parse(Path(str(spec.origin)).read_text())
    found = (node for node in tree.body if isinstance(node, source.Definition) and node.name == name)
    return next(found, None)


def test_a_seam_lies_beside_its_handler() -> None:
    """Each folder declares in its ``seams.py`` what it hooks, or has the adapter change; together: the inventory."""
    declared: list[Seam] = []
    for path in sorted((ROOT / "patches" / "tessera_patches").rglob("seams.py")):
        package = ".".join(path.relative_to(ROOT / "patches").parts[:-1])
        own = import_module(f"{package}.seams").SEAMS
        packages = {seam.handler.partition(":")[0].rpartition(".")[0] for seam in own}
        assert {found for found in packages if found.startswith("tessera_patches.")} - {ADAPTER} == {package}
        declared += own
    assert sorted(map(repr, declared)) == sorted(map(repr, DECLARED))


def test_what_differs_between_versions_is_said() -> None:
    """Where a seam is of some versions alone, or our code does something else in some; each with its reason.

    Seven are of some versions alone. The targets of two have another name in some, and nine are of features that 0.5.17
    lacks.
    """
    for seam in DECLARED:
        assert not seam.versions or seam.differs, seam.target
        assert bool(seam.moved) == bool(seam.moved_why), seam.target
    assert len([seam for seam in DECLARED if seam.versions]) <= 7
    assert len(seams_page.renamed()) <= 2
    assert len(seams_page.of_features()) <= 9
    assert not [seam for seam in seams_page.of_features() if seam.differs]


def test_code_of_some_versions_has_an_entry_that_says_so() -> None:
    """What a handler comes to is of some versions alone: it reads a value, or one of its entries says what differs.

    Nor does an entry say so that is of all versions, and whose handler comes to no such code.
    """
    found = reached()
    assert set().union(*found.values()) >= READS
    apart = {handler for handler, names in found.items() if not names <= READS} | differing_themselves()
    assert apart <= {seam.handler for seam in DECLARED if seam.differs}
    assert {seam.handler for seam in seams_page.adapted()} <= apart
    assert all(seam.differs for seam in DECLARED if seam.versions and seam not in seams_page.of_features())


def test_few_entries_had_to_differ() -> None:
    """Among them each handler that looks itself at what this SGLang has; the adapter's functions are not counted."""
    differing = seams_page.differing()
    assert differing_themselves() <= {seam.handler for seam in differing}
    assert 0 < len(differing) <= 12


def test_a_field_that_is_set_elsewhere_is_refused() -> None:
    """What sets it is named; and so is a field that is gone, and a function that no longer reads it."""
    seam = next(seam for seam in SEAMS if seam.guard is Guard.FIELD and seam.callers)
    entries = lock.current(seam)
    (line,) = lock.mismatches(seam, {**entries, seam.target: {"set_by": ["other"]}})
    assert line.startswith(f"{seam.target}: set_by was ['other'], is [")
    (line,) = lock.mismatches(replace(seam, target=f"{seam.target}_gone"), entries)
    assert line.startswith(f"{seam.target}_gone is not there")
    silent = "sglang.srt.plugins.load_plugins"
    assert lock.mismatches(replace(seam, callers=(silent,)), entries) == [f"{silent} no longer reads {seam.target}"]


def test_a_changed_function_is_refused() -> None:
    """Parameters, body, a caller that went away: each is named."""
    bodies = next(seam for seam in SEAMS if seam.guard is Guard.BODY and seam.callers)
    relying = next(seam for seam in SEAMS if seam.relied)
    for seam, path in ((bodies, bodies.target), (relying, relying.relied[-1])):
        entries = lock.current(seam)
        other = {"parameters": ["other"], "body": "0" * 64, "is_async": not entries[path]["is_async"]}
        for key, value in other.items():
            changed = {**entries, path: {**entries[path], key: value}}
            (line,) = lock.mismatches(seam, changed)  # type: ignore[arg-type]
            assert line.startswith(f"{path}: {key} was")


def test_an_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says which versions are supported, and what to do."""
    monkeypatch.setattr(lock, "installed_version", lambda: "0.5.99")
    versions = lock.supported_versions()
    assert {support.OTHER, support.DEFAULT} <= {*versions}
    with pytest.raises(
        StartRefused, match=re.escape(f"SGLang 0.5.99 is not supported (supported: {', '.join(versions)})")
    ):
        apply.check(list(SEAMS))


def test_hash_sees_code_and_nothing_else() -> None:
    """Comments, docstrings and layout change nothing; a constant does."""
    plain, dressed, other = (
        ast.parse(text).body[0]
        for text in (
            "def f(a):\n    return a + 1",
            'def f(a):\n    """Say."""\n    # why\n    return (a\n      + 1)',
            "def f(a):\n    return a + 2",
        )
    )
    assert isinstance(plain, ast.FunctionDef)
    assert isinstance(dressed, ast.FunctionDef)
    assert isinstance(other, ast.FunctionDef)
    assert source.body_hash(plain) == source.body_hash(dressed) != source.body_hash(other)


def test_of_functions_of_one_name_the_last_is_compared(tmp_path: Path) -> None:
    """As Python has it; of a property the one that gets it, and of a class that is made anew the class."""
    (tmp_path / "two.py").write_text(
        "def f(a): ...\ndef f(b): ...\n"
        "class C:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, value): ...\n"
        "C = make(C)\n"
    )
    found = [source.find(f"{tmp_path.name}.two.{name}", tmp_path.parent) for name in ("f", "C.x", "C")]
    assert [source.parameters(one) for one in found] == [["b"], ["self"], []]
    assert isinstance(found[2], ast.ClassDef)


def test_the_generated_page_is_up_to_date() -> None:
    """`tessera_testing.page_tables` writes it."""
    assert (ROOT / "docs" / "reference" / "seams.md").read_text() == seams_page.page()


def test_both_versions_lost_each_alone() -> None:
    """A version that is on trial did not."""
    assert {support.DEFAULT, support.OTHER} <= {*seams_page.tried_alone()}


@pytest.mark.parametrize("version", seams_page.tried_alone())
def test_each_that_must_be_reached_was_lost_alone(version: str) -> None:
    """No server served without it. Those of the CPU engine alone, without which none starts there, are on demand."""
    ends = seams_page.lost_alone(version)
    needed = {seam.name for seam in seams_page.must_be_reached(version)}
    assert needed - ends.keys() == {seam.name for seam in seams_page.untried_without_gpu(version)}
    assert not [name for name, end in ends.items() if name in needed and end.startswith("serves")]


@pytest.mark.parametrize("seam", [one for one in DECLARED if one.runs is Runs.ON_DEMAND], ids=lambda one: one.name)
def test_who_asks_for_the_others_is_there(seam: Seam) -> None:
    """A test that comes to it."""
    test = seams_page.test_of(seam)
    assert test == seams_page.NO_TEST or (ROOT / test.strip("`")).is_file()


def test_the_list_has_each_seam_with_its_guard_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """`tessera seams`: what a reviewer asks first."""
    assert main(["seams"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(SEAMS)
    for seam, line, reasons in zip(SEAMS, lines[::2], lines[1::2], strict=True):
        assert line.split()[:2] == [seam.phase, seam.hook]
        assert line.split()[-2:] == [seam.guard, seam.target]
        assert seam.why in reasons
        assert seam.remove_when in reasons


def test_every_refused_option_exists() -> None:
    """A renamed option of SGLang would never be refused again."""
    from sglang.srt.server_args import ServerArgs

    fields = set(getattr(ServerArgs, "__struct_fields__", ()) or ServerArgs.__dataclass_fields__)
    later = {"enable_return_aux_hidden_states", "enable_watermark"}
    refused = {field_of(refusal.option) for refusal in (*REFUSALS, *injection.REFUSALS)}
    assert refused - fields <= later
    assert not (later <= fields) or refused <= fields


def test_doctor_is_content(capsys: pytest.CaptureFixture[str]) -> None:
    """On this machine, with this SGLang."""
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert f"{len(SEAMS)} of {len(SEAMS)} match" in output
    assert "speculative decoding that sizes itself: off without --tile-spec" in output


def hooks(interpreter: Interpreter, **env: str) -> list[str]:
    """The targets that we hook in a main process once SGLang has loaded its plugins; others may hook some too."""
    program = (
        "import json; from sglang.srt.plugins import load_plugins; load_plugins();"
        "from sglang.srt.plugins.hook_registry import HookRegistry as R;"
        "print(json.dumps(sorted(t for t in R._patched if any(h[2].plugin_name == 'tessera' for h in R._hooks[t]))))"
    )
    run = interpreter.finish(("-c", program), {**environment({}), **env}, ROOT, 120)
    assert run.returncode == 0, run.stderr
    found: list[str] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_loaded_and_disabled(interpreter: Interpreter) -> None:
    """The hooks of the options until these are known; with ``TESSERA_DISABLE=1`` none at all."""
    assert hooks(interpreter, TESSERA_DISABLE="1") == []
    assert set(hooks(interpreter)) == {seam.target for seam in SEAMS if seam.phase is Phase.LOAD and seam.registered}


def test_imports_point_one_way() -> None:
    """Patches import tessera, tessera imports kernels; only the composition roots look the other way."""
    roots = {"plugin.py", "cli/doctor.py", "cli/seams.py"}
    for folder, forbidden in (
        ("sgl-kernel/tessera_kernels", r"^\s*(from|import) (tessera|tessera_patches|sglang)\b"),
        ("python/tessera", r"^\s*(from|import) (tessera_patches|sglang)\b"),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            if str(path.relative_to(ROOT / folder)) in roots:
                continue
            assert not re.search(forbidden, path.read_text(), re.MULTILINE), path


def test_a_server_imports_no_command() -> None:
    """Nor the client, nor what commands start servers and calibrate with; and nothing imports helpers of tests."""
    parts = ("bulk", "client", "cli", "launching", "capabilities/fingerprints/calibration")
    commands = tuple(f"tessera/{part}" for part in parts)
    theirs = rf"^\s*(from|import) tessera\.({'|'.join(parts).replace('/', chr(92) + '.')})\b"
    for root in ("python", "patches", "sgl-kernel"):
        for path in (ROOT / root).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"^\s*(from|import) tessera_testing\b", text, re.MULTILINE), path
            if not str(path.relative_to(ROOT / root)).startswith(commands):
                assert not re.search(theirs, text, re.MULTILINE), path


def test_the_entry_point_imports_nothing() -> None:
    """SGLang only logs a plugin that fails at import: ours has nothing to fail on."""
    plugin = import_module("tessera.plugin")
    tree = ast.parse(Path(str(plugin.__file__)).read_text())
    assert not [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
