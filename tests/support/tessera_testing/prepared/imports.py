"""What a prepared process imports, and which variables of the environment that depended on."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# What SGLang's launcher, scheduler and detokenizer import before they load plugins, and what they import by name later.
ENGINE = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.data_parallel_controller",
    "sglang.srt.models.registry",
)
# Variables that SGLang reads at import into a constant of a module.
REREAD = {
    "SGLANG_TEST_RETRACT": ("sglang.srt.managers.scheduler", "TEST_RETRACT"),
    "SGLANG_TEST_RETRACT_INTERVAL": ("sglang.srt.managers.scheduler", "TEST_RETRACT_INTERVAL"),
}


# No import depends on them, though some go through all variables that there are.
_HARMLESS = {"PYTEST_CURRENT_TEST"}


class Imported(NamedTuple):
    """What imports did with the environment.

    Attributes:
        read: variables that were read, and their values before, None for those that were not set.
        written: variables that were set, and their values after.
    """

    read: dict[str, str | None]
    written: dict[str, str]

    def differing(self, env: Mapping[str, str]) -> set[str]:
        """Variables that were read, and have another value in an environment: imports in it could differ.

        Not those that have the value that the imports gave them: the process whose environment it is has done them too.
        """
        return (
            {
                name
                for name, before in self.read.items()
                if (value := env.get(name)) != before and value != self.written.get(name, before)
            }
            - REREAD.keys()
            - _HARMLESS
        )


def import_engine() -> None:
    """Import SGLang as its processes do, without loading plugins."""
    import tessera_kernels.cpu

    tessera_kernels.cpu.enable()  # without it, SGLang cannot be imported on a machine without a GPU
    for name in ENGINE:
        importlib.import_module(name)
    _parse_what_is_locked()
    # The place of the process's title is sought when it is first asked for, and found only before `os.environ` changes.
    importlib.import_module("setproctitle").getproctitle()


def _parse_what_is_locked() -> None:
    """Read SGLang's source once: each process of a server compares it with the lock file, which takes 1.5 s of it."""
    from tessera_patches.core import lock
    from tessera_patches.inventory import SEAMS

    locked = lock.load(lock.installed_version())
    for seam in SEAMS:
        lock.mismatches(seam, locked)


def reread() -> None:
    """Set the constants of `REREAD`, where they are imported, as an import in this process's environment would."""
    for name, (module, constant) in REREAD.items():
        if module in sys.modules:
            setattr(sys.modules[module], constant, getattr(sys.modules["sglang.srt.environ"].envs, name).get())


def recorded(work: Callable[[], None]) -> Imported:
    """Do this, and return what it did with the environment."""
    kind: Any = type(os.environ)
    original, before = kind.__getitem__, dict(os.environ)
    read: set[str] = set()

    def noting(self: Mapping[str, str], key: str) -> str:
        read.add(key)
        value: str = original(self, key)
        return value

    kind.__getitem__ = noting
    try:
        work()
    finally:
        kind.__getitem__ = original
    written = {name: value for name, value in os.environ.items() if before.get(name) != value}
    return Imported({name: before.get(name) for name in read}, written)
