"""What the wheel installs: everything for a GPU, and without one a line that says what to do."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera import cpu
from tessera.installing import in_checkout
from tessera_kernels.driver import is_present

ROOT = Path(__file__).parents[2]
HIDE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
"""
HANDLERS = "from tessera_patches.inventory import DECLARED; print(*{seam.handler.split(':')[0] for seam in DECLARED})"
START = """
from tessera import plugin
from tessera_kernels import driver
driver.is_present = lambda: False
plugin.register()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that ``setup.py`` names, as ``pip install .`` copies them."""
    given: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", given.update)
        runpy.run_path(str(ROOT / "setup.py"))
    target = tmp_path_factory.mktemp("wheel")
    for name in given["packages"]:
        top, *inner = name.split(".")
        source = ROOT.joinpath(given["package_dir"][top], *inner)
        target.joinpath(*name.split(".")).mkdir()
        for path in source.iterdir():
            if path.suffix in {".py", ".json", ".toml"}:
                shutil.copy(path, target.joinpath(*name.split(".")))
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with these packages, and without those of the checkout."""
    (installed / "sitecustomize.py").write_text(HIDE)
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=installed, capture_output=True, text=True, check=False)


def test_the_cpu_engine_is_left_out(installed: Path) -> None:
    """And every handler of a hook that is left is there."""
    assert [*installed.glob("*/cpu")] == []
    found = run(installed, "-c", HANDLERS)
    assert found.returncode == 0, found.stderr
    handlers = found.stdout.split()
    assert "tessera_patches.rows.results" in handlers
    assert [name for name in handlers if not installed.joinpath(*name.split(".")).with_suffix(".py").exists()] == []


def test_the_doctor_finds_nothing_wrong(installed: Path) -> None:
    """Also where an image is built, which has no driver."""
    found = run(installed, "-m", "tessera.cli", "doctor")
    assert found.returncode == 0, found.stdout + found.stderr
    assert is_present() or cpu.MISSING in found.stdout


def test_calibration_is_left_out(installed: Path) -> None:
    """The command says where it is; the others are there."""
    found = run(installed, "-m", "tessera.cli", "toploc", "calibrate", "--model-path", "x")
    assert (found.returncode, found.stderr) == (1, in_checkout("tessera toploc calibrate") + "\n")
    assert run(installed, "-m", "tessera.cli", "verify", "--help").returncode == 0


def test_a_start_without_a_gpu_says_what_to_do(installed: Path) -> None:
    """In one line, before SGLang fails to load its kernels."""
    found = run(installed, "-c", START)
    assert found.returncode == 1
    assert found.stderr == f"tessera: refusing to start: {cpu.MISSING}\n"
