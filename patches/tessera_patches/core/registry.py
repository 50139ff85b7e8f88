"""A callback after SGLang's hook registry has applied the hooks."""

from collections.abc import Callable

from tessera_patches.core.changes import put_back, replace_method


def after_hooks_applied(then: Callable[[], None]) -> None:
    """Call ``then`` after SGLang has applied the registered hooks.

    SGLang applies them when all plugins have returned, and only logs hooks that it cannot apply.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    original = HookRegistry.apply_hooks

    def apply_hooks() -> None:
        put_back(HookRegistry, "apply_hooks", original)
        original()
        then()

    replace_method(after_hooks_applied, HookRegistry, "apply_hooks", apply_hooks)
