"""Options: decide what is on, refuse what is not supported, install the rest of the seams."""

from __future__ import annotations

from typing import Any

from tessera import config, cpu_speculation
from tessera.fingerprint.thresholds import Thresholds
from tessera.inject import refusals as injection
from tessera.rows.refusals import refused
from tessera_patches import apply


def decide(result: None, args: Any) -> None:
    """AFTER ``ServerArgs.__post_init__``. Ends the process where an option is not supported."""
    with apply.or_refuse():
        config.active = config.Settings.from_server_args(args)
        lines = refused(args) + _refused_environment() if config.active.rows else []
        lines += injection.refused(args) + _refused_beside_injection() if config.active.inject else []
        if config.flags.needs_rows and not config.active.rows:
            lines.append(
                "--toploc-verification needs every row: leave out --return-hidden-states-mode, or set it to full"
            )
        lines += cpu_speculation.refused(args) if config.active.cpu_speculation else []
        if lines:
            raise SystemExit("\n".join(map(apply.refusing, lines)))
        if config.flags.toploc_thresholds is not None:
            config.thresholds = Thresholds.load(config.flags.toploc_thresholds)
        config.hand_to_children()
        apply.install_main()


def _refused_environment() -> list[str]:
    from sglang.srt.environ import envs

    if envs.SGLANG_RUST_SERVER.get():
        return ["SGLANG_RUST_SERVER cannot be combined with --enable-return-hidden-states: it drops our results"]
    return []


def _refused_beside_injection() -> list[str]:
    from sglang.srt.environ import envs

    refused = {
        "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE": "its ids have 32 bits, our keys 63",
        "SGLANG_ENABLE_REQUEST_DECOMPRESSION": "what a compressed body grows to has no limit",
        "SGLANG_RUST_SERVER": "its requests do not pass our checks",
    }
    return [
        f"{name} cannot be combined with --enable-injection: {why}"
        for name, why in refused.items()
        if getattr(envs, name).get()
    ]
