"""A cache folder that only this user can write to, so that a library loaded from it is the one that was written."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def roots() -> Iterator[Path]:
    """Yield the folders that may hold this user's cache, the preferred one first. None of them need exist."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():  # the XDG specification says to ignore a relative path
        yield configured / "tessera"
    with contextlib.suppress(RuntimeError):  # a container may run under a user id that has no home
        yield Path.home() / ".cache" / "tessera"
    yield Path(tempfile.gettempdir()) / f"tessera-{os.geteuid()}"


def write(file: Path, content: bytes, mode: int = 0o500) -> None:
    """Make ``file`` hold ``content``, in a folder of a folder of :func:`roots` that are both private to this user.

    A file that already holds it stays; any other one is replaced in one step, and gets ``mode``.

    Raises:
        OSError: a folder cannot be made or written, or is not private (:class:`PermissionError`).
    """
    folder = file.parent
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        check_private(path)
    if file.is_file() and not file.is_symlink() and file.read_bytes() == content:
        return
    # Processes that start together write the same bytes, and a rename is atomic.
    handle, name = tempfile.mkstemp(dir=folder)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        unfinished.chmod(mode)
        unfinished.replace(file)
    except OSError:
        unfinished.unlink()
        raise


def check_private(folder: Path) -> None:
    """Check that only this user and root can change the folder's contents.

    Raises:
        OSError: it is not a folder, or another user can (:class:`PermissionError`).
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    if status.st_uid != os.geteuid() or status.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(f"{folder} belongs to another user or can be written by one")
    parent = folder.parent.stat()
    # Whoever owns or may write to the parent may replace the folder; in /tmp the sticky bit leaves that to root.
    shared = parent.st_mode & _WRITABLE_BY_OTHERS and not parent.st_mode & stat.S_ISVTX
    if shared or parent.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{folder.parent} belongs to another user or can be written by one")
