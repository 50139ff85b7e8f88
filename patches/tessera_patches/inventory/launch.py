"""The launcher: options, what a request may say, the errors, the first forward. Installed always."""

from __future__ import annotations

from tessera_patches.inventory.places import MANAGERS, SCHEDULER
from tessera_patches.seam import Guard, Hook, Phase, Seam

SEAMS = (
    Seam(
        target="sglang.srt.server_args.ServerArgs.add_cli_args",
        hook=Hook.AFTER,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.flags:add_options",
        guard=Guard.PARAMETERS,
        why="Adds our options to the launcher's.",
        remove_when="SGLang lets plugins add options.",
        callers=("sglang.srt.server_args.prepare_server_args",),
    ),
    Seam(
        target="sglang.srt.server_args.ServerArgs.from_cli_args",
        hook=Hook.AROUND,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.flags:read_options",
        guard=Guard.PARAMETERS,
        why="Reads our options, before SGLang checks its own.",
        remove_when="SGLang lets plugins add options.",
        callers=("sglang.srt.server_args.prepare_server_args",),
    ),
    Seam(
        target="sglang.srt.server_args.ServerArgs.__post_init__",
        hook=Hook.AFTER,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.server_args:decide",
        guard=Guard.PARAMETERS,
        why="Reads the options, refuses what is not supported, and installs what they ask for.",
        remove_when="SGLang calls plugins once the options are known.",
    ),
    Seam(
        target=f"{MANAGERS}.io_struct.GenerateReqInput",
        hook=Hook.REPLACE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.request:GenerateReqInput",
        guard=Guard.BODY,
        why="Gives the request our fields, which FastAPI would drop; answers return_hidden_states ourselves.",
        remove_when="SGLang passes unknown request fields to plugins.",
    ),
    Seam(
        target="sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        hook=Hook.BEFORE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http_server:prepare",
        guard=Guard.PARAMETERS,
        why="Answers our errors as JSON with status and code; learns the model's hidden size.",
        remove_when="SGLang lets plugins register routes and error handlers.",
        callers=("sglang.srt.entrypoints.http_server.launch_server",),
    ),
    Seam(
        target=f"{SCHEDULER}.get_init_info",
        hook=Hook.BEFORE,
        phase=Phase.SCHEDULER,
        feature="",
        handler="tessera_patches.first_forward:look",
        guard=Guard.PARAMETERS,
        why="The last moment before anything is served: one prompt shows what rows are, and that vectors are taken.",
        remove_when="SGLang calls plugins when a scheduler is ready.",
        callers=(f"{MANAGERS}.scheduler.run_scheduler_process",),
        # Batches and forward are made as SGLang makes those of requests.
        relied=(
            f"{MANAGERS}.schedule_batch.Req.init_next_round_input",
            f"{MANAGERS}.schedule_batch.ScheduleBatch.init_new",
            "sglang.srt.mem_cache.common.release_kv_cache",
            "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.can_replay_locally",
        ),
    ),
)
