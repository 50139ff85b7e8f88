"""Options: refuse what is not supported, switch on what a server asks for, and hand it to its schedulers.

SGLang's arguments are made in many places, and not all of them are a server's. So what they ask for is judged when they
are made, and switched on when a server is started with them.
"""

import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from multiprocessing import current_process
from typing import Any

from tessera import config, cpu, refusal, sampling
from tessera.capabilities.registry import CAPABILITIES
from tessera.config import Settings
from tessera.errors import BadRequest, StartRefused
from tessera.flags import Flags, name_of
from tessera.refusal import Refusal
from tessera.rows import refusals as rows
from tessera.server_options import ServerOptions
from tessera.tilespec import refusals as tilespec
from tessera_patches import support
from tessera_patches.core import apply, calls, lock
from tessera_patches.core.changes import before_signal, set_environment
from tessera_patches.engine.options import later_parameters, override, resolved, sampling_defaults
from tessera_patches.launch import default_deny, liveness

_SKIP_EXTEND = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"
"""SGLang's switch: a step that drafts nothing does not run the draft model either. Its KV cache misses those tokens."""


_command_line_read = False
"""Whether SGLang made arguments of this process's command line by the function that we hook."""


def note_command_line() -> None:
    """Our options on the command line were read."""
    global _command_line_read  # noqa: PLW0603
    _command_line_read = True


def attach_flags(args: Any, flags: Flags) -> None:
    """Our options travel with SGLang's, also when these are copied, and when they are sent to another process."""
    args._tessera_flags = flags


def has_flags(args: Any) -> bool:
    """Whether SGLang's arguments have our options."""
    return hasattr(args, "_tessera_flags")


def refuse_unsupported(args: Any) -> None:
    """End the process where an option is not supported. Nothing is switched on: these may never be a server's."""
    found, flags = resolved(args), args._tessera_flags
    if found.model is None:  # SGLang's own placeholder, "dummy": nothing will be served
        return
    with apply.exit_on_error():
        settings = Settings.from_server_args(found, flags)
        lines = _refused(found, flags, settings) + default_deny.refused(args, settings)
        lines = lines or _refused_model(found, settings)
    if lines:
        raise SystemExit("\n".join(map(apply.refusal_line, lines)))


def switch_on(args: Any) -> None:
    """BEFORE ``ServerArgs.check_server_args``, which every launcher calls before it starts a process."""
    with apply.exit_on_error():
        if not has_flags(args):
            _attach_environment_flags(args)
        found, flags = resolved(args), args._tessera_flags
        refuse_unread(flags)
        counted = calls.share()
        if flags.tile_spec:
            set_environment(switch_on, _SKIP_EXTEND, "1")
            if tilespec.why_no_rejection_sampling(found, unwanted=flags.tile_spec_no_rejection_sampling) is None:
                override(args, speculative_use_rejection_sampling=True)
        found = resolved(args)  # what was overridden, too
        config.conditions = config.conditions_of(found, flags)
        args._tessera_settings = config.switch_on(Settings.from_server_args(found, flags), flags, counted)
        if config.inbox is not None:  # SGLang's handler, which a failed scheduler calls, ends this process at once
            before_signal(switch_on, signal.SIGQUIT, config.inbox.hide, "_set_envs_and_config")
        apply.install_main()
        liveness.expect_answers()


def _attach_environment_flags(args: Any) -> None:
    """Arguments that are older than our hooks: whoever made them did not load SGLang's plugins before."""
    flags = Flags.of_environment()
    if flags.needs_rows and resolved(args).return_hidden_states_mode is None:
        override(args, enable_return_hidden_states=True, return_hidden_states_mode="full")
    attach_flags(args, flags)
    refuse_unsupported(args)


def refuse_unread(flags: Flags) -> None:
    """Refuse options of ours on this process's command line that no hook of ours has parsed.

    Flags that differ from the environment's were given in another way, as keywords of the engine.

    Raises:
        StartRefused: SGLang no longer makes its arguments by the function that we hook.
    """
    environment = Flags.of_environment()
    named = {name_of(one) for one in fields(Flags)} - {*environment.non_default()}
    unread = sorted(named & {word.partition("=")[0] for word in sys.argv[1:]})
    if unread and flags == environment and not _command_line_read:
        raise StartRefused(f"{', '.join(unread)}: SGLang did not call our hook on ServerArgs.from_cli_args")


def apply_settings(result: Any, args: Any, *_: Any, **__: Any) -> None:
    """AFTER ``configure_scheduler_process``: the first moment at which a scheduler's process knows its arguments."""
    with apply.exit_on_error():
        decided = getattr(args, "_tessera_settings", None)
        if decided is not None:
            config.apply(decided)
            calls.attach(decided.calls)
            apply.install_scheduler()
        else:
            _refuse_undecided(args)


def check_child() -> None:
    """In a process of the engine: the main process must have decided what SGLang's arguments ask for.

    `apply_settings` asks the same if SGLang calls it. This needs no hook: multiprocessing knows a process's arguments.
    The engine's processes get the ports, too; a server that a library starts in a process of its own has yet to decide.

    Raises:
        StartRefused: it decided nothing, and they ask for something.
    """
    process = current_process()
    given = (*getattr(process, "_args", ()), *getattr(process, "_kwargs", {}).values())
    kinds = {type(value).__name__: value for value in given}  # names: SGLang's classes may not be imported yet
    args = kinds.get("ServerArgs")
    if args is not None and "PortArgs" in kinds and not hasattr(args, "_tessera_settings"):
        _refuse_undecided(args)


def _refuse_undecided(args: Any) -> None:
    if on := Settings.from_server_args(resolved(args), _flags_of(args)).features():
        raise StartRefused(f"{', '.join(on)}: SGLang started this process without ServerArgs.check_server_args")


def _flags_of(args: Any) -> Flags:
    flags: Flags = getattr(args, "_tessera_flags", None) or Flags.of_environment()
    return flags


def _refused(args: ServerOptions, flags: Flags, settings: Settings) -> list[str]:
    on = [*settings.features(), *(["fingerprints"] if flags.toploc_verification else [])]
    lines = support.refused(on, lock.installed_version(), lock.supported_versions())
    if lines:
        return lines
    if settings.rows:
        lines = refusal.lines(rows.REFUSALS, args, rows.SWITCH) + _set(rows.ENVIRONMENT, rows.SWITCH)
    for capability in CAPABILITIES:
        lines += capability.refused(flags, rows=settings.rows)
        if capability.name in on:
            lines += refusal.lines(capability.refusals, args, capability.switch)
            lines += _set(capability.environment, capability.switch)
    lines += _refused_defaults(args) if settings.guarded else []
    if flags.rows_on_host and not settings.rows:
        lines.append("--rows-on-host needs --enable-return-hidden-states or --toploc-verification: add one")
    lines += cpu.refused(args) if settings.cpu_speculation else []
    lines += [cpu.MISSING] if on and args.device == "cpu" and not cpu.INSTALLED else []
    lines += tilespec.refused(args) + _set(tilespec.ENVIRONMENT, "--tile-spec") if settings.tilespec else []
    return lines + tilespec.refused_flags(flags, args)


def _refused_defaults(args: ServerOptions) -> list[str]:
    """SGLang adds these to a request's sampling parameters after our checks."""
    try:
        sampling.check(sampling_defaults(args), 0, later=later_parameters())
    except BadRequest as error:
        return [f"--preferred-sampling-params: {error}"]
    return []


def _refused_model(args: ServerOptions, settings: Settings) -> list[str]:
    """By what the target's configuration says, which SGLang has read by now; its weights may take minutes."""
    model = args.model
    if model is None:
        return []
    found = [
        rows.refused_model(no_full_pool=model.no_full_pool, is_encoder_decoder=model.encodes)
        if settings.rows
        else None,
        tilespec.refused_model(keeps_state=model.keeps_state) if settings.tilespec else None,
    ]
    lines = [line for line in found if line is not None]
    if model.keeps_state:
        tables: list[tuple[Sequence[Refusal], str]] = [(rows.BESIDE_STATE, rows.SWITCH)] if settings.rows else []
        tables += [(one.beside_state, one.switch) for one in CAPABILITIES if one.name in settings.features()]
        lines += [line for table, on in tables for line in refusal.lines(table, args, on + refusal.BESIDE)]
    return lines


def _set(variables: Sequence[Refusal], feature: str) -> list[str]:
    """One sentence for each of SGLang's variables that is set to something but 0."""
    from sglang.srt.environ import envs

    return [
        f"{one.option} cannot be combined with {feature}: {one.reason}"
        for one in variables
        if one.counts and hasattr(envs, one.option) and (getattr(envs, one.option).get() or 0) not in (0, -1)
    ]
