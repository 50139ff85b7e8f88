"""The launcher: our options in SGLang's arguments, and on their way to schedulers. Installed always."""

from __future__ import annotations

from tessera_patches.core.places import ENVIRONMENT, SERVER_ARGS, WORKERS
from tessera_patches.core.seam import Guard, Hook, Phase, Seam

SEAMS = (
    Seam(
        target=f"{SERVER_ARGS}.add_cli_args",
        hook=Hook.AFTER,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.launch.flags:add_options",
        guard=Guard.PARAMETERS,
        why="Adds our options to the launcher's.",
        remove_when="SGLang lets plugins add options.",
        callers=("sglang.srt.server_args.prepare_server_args",),
    ),
    Seam(
        target=f"{SERVER_ARGS}.from_cli_args",
        hook=Hook.AROUND,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.launch.flags:read_options",
        guard=Guard.PARAMETERS,
        why="Reads our options, before SGLang checks its own.",
        remove_when="SGLang lets plugins add options.",
        callers=("sglang.srt.server_args.prepare_server_args",),
    ),
    Seam(
        target=f"{SERVER_ARGS}.__init__",
        hook=Hook.AROUND,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.launch.flags:construct",
        guard=Guard.PARAMETERS,
        why="Takes our options as keywords, and refuses what is not supported.",
        remove_when="SGLang lets plugins add options.",
    ),
    Seam(
        target=f"{SERVER_ARGS}.check_server_args",
        hook=Hook.BEFORE,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.launch.server_args:switch_on",
        guard=Guard.PARAMETERS,
        why="Every launcher comes by before it starts a process: here a server's arguments are told from others.",
        remove_when="SGLang calls plugins before it starts a server.",
        callers=("sglang.srt.entrypoints.engine.Engine._launch_subprocesses",),
        relied=(f"{SERVER_ARGS}.override",),
        writes=(
            f"{SERVER_ARGS}.enable_return_hidden_states",
            f"{SERVER_ARGS}.return_hidden_states_mode",
            f"{SERVER_ARGS}.speculative_use_rejection_sampling",
        ),
    ),
    Seam(
        target="sglang.srt.managers.scheduler.configure_scheduler_process",
        hook=Hook.AFTER,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.launch.server_args:join",
        guard=Guard.PARAMETERS,
        why="Installs in a scheduler what the arguments say that it was started with.",
        remove_when="SGLang tells plugins which process they are in.",
        callers=("sglang.srt.managers.scheduler.run_scheduler_process",),
    ),
    Seam(
        target=f"{ENVIRONMENT}.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND",
        hook=Hook.VALUE,
        phase=Phase.MAIN,
        feature="tilespec",
        handler="tessera_patches.launch.server_args:switch_on",
        guard=Guard.FIELD,
        why="A step that drafts nothing does not run the draft model either.",
        remove_when="SGLang makes this the default.",
        callers=(f"{WORKERS}.EAGLEWorkerV2.forward_batch_generation",),
    ),
)
