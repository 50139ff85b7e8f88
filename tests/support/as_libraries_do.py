"""Starts a server as RL libraries do, without SGLang's launcher: ``python as_libraries_do.py WAY OPTIONS...``.

``spawned``: ``launch_server`` in a process of its own (slime, AReaL, SGLang's ``HttpServerEngineAdapter``).
``own-app``: the engine's processes, then SGLang's application in this process (verl).
``own-scheduler``: as ``own-app``, with schedulers that load no plugin (AReaL's server with its own weight updates, and
SGLang's Ray actors).

The options are read by SGLang's own parser, so ours are not among them, and become keywords of ``ServerArgs``.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

import tessera_kernels.cpu

tessera_kernels.cpu.enable()  # without it, SGLang cannot be imported on a machine without a GPU

import uvicorn  # noqa: E402
from sglang.srt.entrypoints import http_server  # noqa: E402
from sglang.srt.entrypoints.engine import (  # noqa: E402
    Engine,
    init_tokenizer_manager,
    run_detokenizer_process,
    run_scheduler_process,
)
from sglang.srt.managers import scheduler  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402


def main(way: str, options: list[str]) -> None:
    """Start the server, and stay until it ends."""
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    given = vars(parser.parse_args(options))
    known = set(inspect.signature(ServerArgs).parameters)
    args = ServerArgs(**{name: value for name, value in given.items() if name in known})
    if way == "spawned":
        process = multiprocessing.get_context("spawn").Process(target=http_server.launch_server, args=(args,))
        process.start()
        process.join()
        sys.exit(process.exitcode)
    serve(args, run_scheduler_process if way == "own-app" else without_plugins)


def without_plugins(*args: Any, **kwargs: Any) -> None:
    """In a scheduler's process."""
    scheduler.load_plugins = lambda: None
    run_scheduler_process(*args, **kwargs)


def serve(args: ServerArgs, run_scheduler: Callable[..., None]) -> None:
    """In this process."""
    manager, template, _, started, *_ = Engine._launch_subprocesses(
        server_args=args,
        init_tokenizer_manager_func=init_tokenizer_manager,
        run_scheduler_process_func=run_scheduler,
        run_detokenizer_process_func=run_detokenizer_process,
    )
    state = http_server._GlobalState(
        tokenizer_manager=manager, template_manager=template, scheduler_info=started.scheduler_infos[0]
    )
    http_server.set_global_state(state)
    app = http_server.app
    app.is_single_tokenizer_mode = True
    app.server_args = args
    app.warmup_thread_kwargs = {"server_args": args, "launch_callback": None, "execute_warmup_func": lambda *_: True}
    uvicorn.run(app, host=args.host, port=args.port)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
