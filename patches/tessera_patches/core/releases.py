"""The source of SGLang's releases, as their wheels have it."""

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from tessera_patches.core import lock


class ReleaseMissing(Exception):
    """A release cannot be downloaded."""


class Releases:
    """Downloads releases from the package index, into a temporary folder; a context manager. Nothing is imported."""

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="sglang-")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._folder.cleanup()

    @property
    def empty(self) -> Path:
        """A folder without packages: before there is anything to compare with, all of a function is new."""
        return Path(self._folder.name) / "nothing"

    def root(self, version: str) -> Path | None:
        """The folder that has this release's packages, as the functions of `source` take it; None: it is installed.

        Raises:
            ReleaseMissing: there is no such release, no index or no pip.
        """
        if version == lock.installed_version():
            return None
        root = Path(self._folder.name) / version
        if not root.exists():
            with zipfile.ZipFile(_wheel(version, Path(self._folder.name))) as wheel:
                wheel.extractall(root, [name for name in wheel.namelist() if name.endswith(".py")])
        return root


def _wheel(version: str, folder: Path) -> Path:
    """The wheel for this Python, whatever Python pip belongs to: environments made by uv have none."""
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["pip"]
    python = ".".join(map(str, sys.version_info[:2]))
    options = ("--no-deps", "--only-binary", ":all:", "--python-version", python, "--dest", str(folder), "--quiet")
    try:
        run = subprocess.run(
            [*pip, "download", *options, f"sglang=={version}"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ReleaseMissing(f"SGLang {version} is downloaded by pip, and there is none") from None
    wheels = list(folder.glob(f"sglang-{version}-*.whl"))
    if not wheels:
        raise ReleaseMissing(f"SGLang {version} cannot be downloaded:\n{run.stderr.strip()}")
    return wheels[0]
