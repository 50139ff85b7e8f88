"""Install seams: check them against the lock, register them with SGLang, and prove that they were applied."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tessera import config
from tessera.errors import StartRefused
from tessera.refusal import schedules_apart
from tessera_patches import inventory
from tessera_patches.core import calls, lock
from tessera_patches.core.changes import filter_log
from tessera_patches.core.registry import after_hooks_applied
from tessera_patches.core.seam import Hook, Phase, Seam

installed: list[Seam] = []
"""The hooks in force in this process."""


def refusal_line(why: object) -> str:
    """The message of a process that refuses to start."""
    return f"tessera: refusing to start: {why}"


def write_line(line: str) -> None:
    """Write to the standard error in one piece: a thread that logs meanwhile would get between a print and its end."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def start_error(why: object) -> BaseException:
    """The exception to raise in a scheduler process that must not serve; the whole start ends with its one line.

    With several replicas it is no ``SystemExit``: SGLang's data-parallel controller notices errors, and waits forever
    for a scheduler that exits.
    """
    from tessera_patches.engine.options import own_options

    several = schedules_apart(own_options())
    return StartRefused(refusal_line(why)) if several else SystemExit(refusal_line(why))


def foreign_class_error(instance: object, ours: str) -> BaseException:
    """`start_error` where SGLang has made an object of its own class, and did not come to ``ours``."""
    kind = type(instance)
    return start_error(f"SGLang did not come to {ours}, and made a {kind.__module__}.{kind.__name__} of its own")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the process with one line where the block fails. SGLang would only log some of these errors."""
    try:
        yield
    except Exception as error:
        raise SystemExit(refusal_line(error)) from error


def install(*, on_cpu: bool) -> None:
    """Install what every process needs; called from the plugin's entry point, before SGLang applies hooks.

    Args:
        on_cpu: whether this process was made ready to serve without a GPU.
    """
    if on_cpu:
        _count_cpu(inventory.seams(Phase.CPU, []))
    filter_log(install, "sglang.srt.plugins.hook_registry", "(from: plugin=tessera,")
    wanted = inventory.seams(Phase.LOAD, [])
    _register(wanted)
    after_hooks_applied(lambda: _verify_or_exit(wanted))


def _count_cpu(made: list[Seam]) -> None:
    """Check and count what this process was made ready with; operators are counted when SGLang calls them."""
    check(made)
    for seam in made:
        if seam.hook is Hook.VALUE:
            calls.count(handler(seam), seam.target.rpartition(".")[2])
    import_module("tessera_kernels.cpu.ops").on_call(calls.count)


def install_main() -> None:
    """Install the seams of the main process, now that the options are known; may be called again."""
    features = config.active.features()
    if features:
        check(inventory.seams(Phase.SCHEDULER, features))  # fail here, before a process is started and a model loaded
    _install_now(inventory.seams(Phase.MAIN, features))


def install_scheduler() -> None:
    """Install the seams of a scheduler's process, where anything is on."""
    features = config.active.features()
    if features:
        _install_now(inventory.seams(Phase.SCHEDULER, features))


def _install_now(seams: list[Seam]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    wanted = [seam for seam in seams if seam not in installed]
    _register(wanted)
    HookRegistry.apply_hooks()
    _verify(wanted)


def _register(wanted: list[Seam]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    check(wanted)
    source = HookSource("tessera", "sglang-tessera")
    for seam in _registered(wanted):
        if seam.target in HookRegistry._patched:
            raise StartRefused(f"another plugin has already patched {seam.target}; SGLang would ignore our hook")
        HookRegistry.register(seam.target, calls.counted(handler(seam), seam), HookType(seam.hook.value), source=source)


def check(wanted: list[Seam]) -> None:
    """Compare seams with the lock file of the installed SGLang.

    Raises:
        StartRefused: one does not fit.
    """
    try:
        locked = lock.load(lock.installed_version())
    except lock.VersionUnsupported as error:
        raise StartRefused(str(error)) from error
    wrong = [line for seam in wanted for line in lock.mismatches(seam, locked)]
    if wrong:
        raise StartRefused("this SGLang differs from the one that was reviewed: " + "; ".join(wrong))


def handler(seam: Seam) -> Callable[..., Any]:
    """Import the seam's handler."""
    module, name = seam.handler.split(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _verify_or_exit(wanted: list[Seam]) -> None:
    with exit_on_error():
        _verify(wanted)


def _verify(wanted: list[Seam]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks = _registered(wanted)
    missing = [seam.target for seam in hooks if seam.target not in HookRegistry._patched]
    if missing:
        raise StartRefused("SGLang did not apply our hooks on " + ", ".join(missing))
    installed.extend(hooks)


def _registered(seams: list[Seam]) -> list[Seam]:
    return [seam for seam in seams if seam.registered]
