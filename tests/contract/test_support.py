"""Which features each SGLang version has, and what is said of those that it lacks."""

from __future__ import annotations

import ast
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tessera import cpu
from tessera.config import Settings
from tessera.flags import Flags
from tessera_patches import support
from tessera_patches.core import lock
from tessera_patches.launch import server_args
from tessera_testing import refused_versions
from tessera_testing.imports import modules
from tessera_testing.pages import PAGES
from tessera_testing.server_options import server_options

OLD = "0.5.17"


@pytest.mark.parametrize("feature", support.OPTIONS)
def test_what_a_version_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """With the version that has it; before anything else is looked at, and nothing else is refused."""
    monkeypatch.setattr(support, "VERSIONS", {feature: "<0.5.18"})
    monkeypatch.setattr(lock, "installed_version", lambda: "0.5.23")
    settings = Settings(**dict.fromkeys(support.OPTIONS.keys() - {"fingerprints"}, True))
    lines = server_args._refused(server_options(), Flags(toploc_verification=True), settings)
    assert lines == [f"{support.OPTIONS[feature]} needs SGLang {OLD}; 0.5.23 is installed"]


@pytest.mark.parametrize(("device", "detokenizers"), [("cpu", True), ("cpu", False), ("cuda", True)])
def test_a_wheel_serves_no_feature_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, detokenizers: bool
) -> None:
    """On a machine that has one, too: ``--device cpu``. A server with nothing on stays the stock one."""
    monkeypatch.setattr(cpu, "INSTALLED", False)
    monkeypatch.setattr(support, "VERSIONS", {})
    lines = server_args._refused(server_options(device=device), Flags(), Settings(detokenizers=detokenizers))
    assert lines == ([cpu.MISSING] if device == "cpu" and detokenizers else [])


def test_what_may_be_absent_has_an_option() -> None:
    """Else its refusal could not name it."""
    assert support.VERSIONS.keys() <= support.OPTIONS.keys()


def test_each_refusal_of_some_versions_is_in_the_matrix() -> None:
    """In the page on compatibility, as it stands in the source: with ``versions``, or a fourth value."""
    written = {
        ast.literal_eval(call.args[0])
        for name, path in modules().items()
        if name.startswith("tessera.")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Refusal"
        if len(call.args) > 3 or any(one.arg == "versions" for one in call.keywords)
    }
    shown = {one.option for one in refused_versions.of_some()}
    assert shown == written
    page = PAGES["docs/reference/compatibility.md"].read_text()
    assert all(f"\n| `{option}` | " in page for option in {*shown, *support.OPTIONS.values()})


def test_every_table_of_refusals_names_its_feature() -> None:
    """The matrix and the report about a release have all of them, the last ones by what the versions say."""
    assert {name for name, _ in refused_versions.tables()} == refused_versions.FEATURES.keys()
    refused, allowed = refused_versions.to_try("0.5.17")
    assert (allowed, len(refused)) == ([], len(refused_versions.of_some()) + len(support.VERSIONS))
    assert refused_versions.to_try("0.5.99") == ([], refused_versions.to_try("0.5.23")[1])
    assert "--enable-dp-attention (there: >=0.5.23)" in refused
    assert "--kv-events-config with `--enable-injection` (refused: <0.5.23)" in refused


def test_what_a_release_needs() -> None:
    """As the installed one's own metadata says; every supported one is in the table."""
    assert sorted(support.releases(), key=lock.release_numbers) == lock.supported_versions()
    wanted = support.releases()[lock.installed_version()]
    assert metadata.metadata("sglang")["Requires-Python"] == wanted.python
    needs = map(Requirement, metadata.requires("sglang") or ())
    assert [str(one.specifier) for one in needs if one.name == "torch" and not one.marker] == [f"=={wanted.torch}"]
