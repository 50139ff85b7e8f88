"""The stand-in for the CUDA driver: in a private place, found by child processes, and only where there is no driver."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tessera_kernels import cpu, private_cache
from tessera_kernels.cpu import driver, elf
from tessera_kernels.driver import SONAME

KERNELS = str(Path(cpu.__file__).parents[2])
linux_only = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in elf.MACHINES, reason="loads a library written for Linux"
)


def run_python(code: str, **environment: str) -> Any:
    """Run ``code`` in a fresh interpreter, with an empty search path, and return the JSON that it prints."""
    base = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    base |= {"PYTHONPATH": KERNELS} | environment
    done = subprocess.run([sys.executable, "-c", code], env=base, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@linux_only
def test_installed_stand_in_serves_this_process_and_its_children(tmp_path: Path) -> None:
    """A child finds it by name, and an earlier search path stays."""
    child = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuPointerGetAttribute())"
    code = f"""
import ctypes, json, os, subprocess, sys
from tessera_kernels.cpu import driver
from tessera_kernels.driver import is_present
driver.install()
driver.install()
here = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute()
child = int(subprocess.check_output([sys.executable, "-c", {child!r}]))
print(json.dumps([here, child, is_present(), os.environ["LD_LIBRARY_PATH"]]))
"""
    for before, after in (("", ""), ("/some/where", ":/some/where")):
        here, child_got, real, path = run_python(code, XDG_CACHE_HOME=str(tmp_path), LD_LIBRARY_PATH=before)
        assert (here, child_got, real) == (100, 100, False)
        assert path == str(next((tmp_path / "tessera").iterdir())) + after


@linux_only
def test_enable_changes_nothing_where_a_driver_is_installed(tmp_path: Path) -> None:
    """Another libcuda.so.1 on the search path: no file, no variable, no import of torch."""
    (tmp_path / SONAME).write_bytes(elf.shared_object(SONAME, {"cuInit": 0}, platform.machine()))
    code = """
import json, os, sys
from tessera_kernels import cpu
before = dict(os.environ)
print(json.dumps([cpu.enable(), os.environ == before, "torch" in sys.modules]))
"""
    cache_home = tmp_path / "cache"
    assert run_python(code, LD_LIBRARY_PATH=str(tmp_path), XDG_CACHE_HOME=str(cache_home)) == [False, True, False]
    assert not cache_home.exists()


def test_enable_changes_nothing_on_other_systems() -> None:
    """Windows and macOS have neither the wheel nor its problem."""
    with mock.patch.object(sys, "platform", "darwin"), mock.patch.dict(os.environ):
        before = dict(os.environ)
        assert cpu.enable() is False
        assert os.environ == before


def test_unsupported_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is machine code for two processors only."""
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(RuntimeError, match="no stand-in for the CUDA driver on a s390x processor: install a CUDA"):
        driver.install()


def test_no_usable_folder_is_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message has every folder that was tried."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(private_cache, "roots", lambda: [tmp_path / "file"])
    with pytest.raises(RuntimeError, match=r"set XDG_CACHE_HOME to a folder of your own .* Tried .*/file: "):
        driver.install()


def test_cache_is_private_and_replaces_what_somebody_left(tmp_path: Path) -> None:
    """A file with other content, or a link, does not survive."""
    file = tmp_path / "root" / "folder" / "file"
    private_cache.write(file, b"good")
    assert [path.stat().st_mode & 0o777 for path in (file.parents[1], file.parent)] == [0o700, 0o700]
    written = file.stat().st_ino
    private_cache.write(file, b"good")
    assert file.stat().st_ino == written
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"good")
    for plant in (lambda: file.write_bytes(b"bad"), lambda: file.symlink_to(elsewhere)):
        file.unlink()
        plant()
        private_cache.write(file, b"good")
        assert file.read_bytes() == b"good"
        assert not file.is_symlink()
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("level", ["parent", "root", "folder"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_cache_refuses_a_folder_that_others_can_write(tmp_path: Path, level: str, mode: int) -> None:
    """Not in the folder, its parent or the one above."""
    folders = {"parent": tmp_path / "p", "root": tmp_path / "p" / "r", "folder": tmp_path / "p" / "r" / "f"}
    folders["folder"].mkdir(parents=True)
    folders[level].chmod(mode)
    with pytest.raises(PermissionError, match=f"{folders[level]} belongs to another user or can be written by one"):
        private_cache.write(folders["folder"] / "file", b"good")
    assert not list(folders["folder"].iterdir())


def test_cache_refuses_a_folder_of_another_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who owns a folder can replace what is in it."""
    private_cache.write(tmp_path / "root" / "folder" / "file", b"good")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(PermissionError, match="root belongs to another user"):
        private_cache.write(tmp_path / "root" / "folder" / "file", b"good")


def test_cache_accepts_a_sticky_parent_and_refuses_a_linked_folder(tmp_path: Path) -> None:
    """The folder for temporary files is fit to hold one of ours; a link may lead anywhere."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    private_cache.write(shared / "root" / "folder" / "file", b"good")
    (shared / "linked").symlink_to(shared / "root", target_is_directory=True)
    with pytest.raises(NotADirectoryError, match="linked is not a folder"):
        private_cache.write(shared / "linked" / "folder" / "file", b"good")


def test_cache_roots_follow_xdg_then_home_then_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG_CACHE_HOME is ignored, as its specification says."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/temporary")
    last_two = [Path("/home/me/.cache/tessera"), Path(f"/temporary/tessera-{os.geteuid()}")]
    for value, first in (("/xdg", [Path("/xdg/tessera")]), ("relative", []), ("", [])):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert list(private_cache.roots()) == first + last_two
