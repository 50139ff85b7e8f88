"""Which features each SGLang version has, and what is said of those that it lacks."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from tessera import cpu
from tessera.config import Settings
from tessera.flags import Flags
from tessera_patches import support
from tessera_patches.core import lock
from tessera_patches.launch import server_args

OLD = "0.5.17"


@pytest.mark.parametrize("feature", support.OPTIONS)
def test_what_a_version_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """With the version that has it; before anything else is looked at, and nothing else is refused."""
    monkeypatch.setattr(support, "VERSIONS", {feature: "<0.5.18"})
    monkeypatch.setattr(lock, "installed_version", lambda: "0.5.23")
    settings = Settings(**dict.fromkeys(support.OPTIONS.keys() - {"fingerprints"}, True))
    lines = server_args._refused(None, Flags(toploc_verification=True), settings)
    assert lines == [f"{support.OPTIONS[feature]} needs SGLang {OLD}; 0.5.23 is installed"]


@pytest.mark.parametrize(("device", "detokenizers"), [("cpu", True), ("cpu", False), ("cuda", True)])
def test_a_wheel_serves_no_feature_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, detokenizers: bool
) -> None:
    """On a machine that has one, too: ``--device cpu``. A server with nothing on stays the stock one."""
    monkeypatch.setattr(cpu, "INSTALLED", False)
    monkeypatch.setattr(support, "VERSIONS", {})
    lines = server_args._refused(SimpleNamespace(device=device), Flags(), Settings(detokenizers=detokenizers))
    assert lines == ([cpu.MISSING] if device == "cpu" and detokenizers else [])


def test_what_may_be_lacking_has_an_option() -> None:
    """Else its refusal could not name it."""
    assert support.VERSIONS.keys() <= support.OPTIONS.keys()


def test_what_a_release_needs() -> None:
    """As the installed one's own metadata says; every supported one is in the table."""
    assert sorted(support.releases(), key=lock.release_numbers) == lock.supported_versions()
    wanted = support.releases()[lock.installed_version()]
    assert metadata.metadata("sglang")["Requires-Python"] == wanted.python
    needs = map(Requirement, metadata.requires("sglang") or ())
    assert [str(one.specifier) for one in needs if one.name == "torch" and not one.marker] == [f"=={wanted.torch}"]
