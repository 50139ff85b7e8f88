"""The entry point that SGLang loads in its main process and in every scheduler.

Nothing may fail at import: SGLang only logs a plugin that does not import, and serves on without it.
"""


def register() -> None:
    """Called by ``sglang.srt.plugins.load_plugins``: make the CPU engine ready, then install our seams.

    Any failure ends the process with one line: SGLang would log an exception and serve on without us.
    """
    try:
        _install()
    except Exception as error:
        raise SystemExit(f"tessera: refusing to start: {error}") from error


def _install() -> None:
    from tessera import config, cpu
    from tessera_kernels import driver

    on_cpu = driver.is_missing()
    if on_cpu:  # not a hook: without it SGLang does not even import on a machine without a GPU
        cpu.enable()
    if not config.disabled():
        from tessera_patches.core import apply

        apply.install(on_cpu=on_cpu)

        from tessera_patches.launch.flags import accept_keywords
        from tessera_patches.launch.server_args import check_child

        accept_keywords()
        check_child()
