"""The hook registry itself."""

from tessera_patches.core.seam import Hook, Phase, Runs, Seam

SEAMS = (
    Seam(
        target="sglang.srt.plugins.hook_registry.HookRegistry.apply_hooks",
        hook=Hook.METHOD,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.core.registry:after_hooks_applied",
        why="Learns whether the hooks on options were applied: SGLang does it after plugins, and only logs what fails.",
        remove_when="SGLang ends a start whose hooks cannot be applied.",
        runs=Runs.START,
        callers=("sglang.srt.plugins.load_plugins",),
        relied=("sglang.srt.plugins.hook_registry.HookRegistry.register",),
    ),
    Seam(
        target="sglang.srt.plugins.hook_registry.HookRegistry.apply_hooks",
        hook=Hook.OBJECT,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.core.apply:install",
        why="Its log has no line for each of our hooks, fifty at a start: one of ours says what is on.",
        remove_when="SGLang logs applied hooks at the level DEBUG.",
        runs=Runs.START,
    ),
)
