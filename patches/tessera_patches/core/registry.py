"""SGLang's hook registry: what it applied, once it did."""

from __future__ import annotations

from collections.abc import Callable

from tessera_patches.core.changes import replace_method


def once_applied(then: Callable[[], None]) -> None:
    """Call ``then`` once SGLang has applied the hooks that are registered by now.

    It does so after all plugins have returned, and only logs what fails.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    original = HookRegistry.apply_hooks

    def apply_hooks() -> None:
        replace_method(HookRegistry, "apply_hooks", original)
        original()
        then()

    replace_method(HookRegistry, "apply_hooks", apply_hooks)
