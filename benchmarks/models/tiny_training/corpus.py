"""The training text: the Python standard library's own sources."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

#: Left out: other people's packages, tests, caches, and folders that are tables
#: rather than code (`encodings`, `pydoc_data`) or that some distributions drop.
SKIPPED_FOLDERS = frozenset(
    [
        *("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"),
        *("encodings", "pydoc_data", "idlelib", "lib2to3", "turtledemo", "ensurepip"),
    ],
)
#: Generated at installation, or changed by distributions: not the same everywhere.
SKIPPED_PREFIXES = ("_sysconfigdata", "sitecustomize")
#: One file in this many is held out.
HELD_OUT_ONE_IN = 20


@dataclass(frozen=True)
class Corpus:
    """Source texts in path order; each file is in exactly one of the two lists."""

    train: list[str]
    held_out: list[str]
    held_out_names: list[str]
    sha256: str

    @property
    def train_bytes(self) -> int:
        """UTF-8 bytes of the training texts."""
        return count_bytes(self.train)

    @property
    def held_out_bytes(self) -> int:
        """UTF-8 bytes of the held-out texts."""
        return count_bytes(self.held_out)


def count_bytes(texts: list[str]) -> int:
    """UTF-8 bytes of all texts together."""
    return sum(len(text.encode()) for text in texts)


def source_files(root: Path) -> list[Path]:
    """The Python files under `root` that are trained on, in path order."""

    def wanted(path: Path) -> bool:
        inside = path.relative_to(root).parts[:-1]
        return not (SKIPPED_FOLDERS.intersection(inside) or path.name.startswith(SKIPPED_PREFIXES))

    files = filter(wanted, root.rglob("*.py"))
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def is_held_out(name: str) -> bool:
    """Whether the file of this relative path is held out.

    A hash of the path decides, so that a file keeps its side when others come or go.
    """
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def load_corpus(root: Path) -> Corpus:
    """Read every source file under `root`, split by `is_held_out`."""
    train: list[str] = []
    held_out: list[str] = []
    held_out_names: list[str] = []
    digest = hashlib.sha256()
    for path in source_files(root):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        digest.update(f"{name}\0{text}\0".encode())
        if is_held_out(name):
            held_out.append(text)
            held_out_names.append(name)
        else:
            train.append(text)
    if not train or not held_out:
        sys.exit(f"no Python sources to train on in {root}")
    return Corpus(train, held_out, held_out_names, digest.hexdigest())
