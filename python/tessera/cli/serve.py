"""``tessera serve``: start a server with the options that embeddings and candidates need."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from tessera.launching.command import gpu_present

WITHOUT_GPU = ("--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", "8192")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="start a server that generates and embeds",
        description="Print the line that starts a stock SGLang server with Tessera's features, and become it.",
        epilog="Options of serve stand before MODEL. What follows -- goes to SGLang, and wins. Examples:\n"
        "  tessera serve deepseek-ai/DeepSeek-Prover-V2-7B\n"
        "  tessera serve --port 30001 MODEL -- --mem-fraction-static 0.85 --api-key KEY\n"
        "Then, from another shell:\n"
        "  tessera check http://127.0.0.1:30000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="folder of the model, or its Hugging Face name")
    parser.add_argument("--port", type=int, default=os.environ.get("PORT", "30000"), help="default: $PORT, else 30000")
    parser.add_argument(
        "--tp",
        type=int,
        default=os.environ.get("TENSOR_PARALLEL", "1"),
        help="over how many GPUs the model is spread; default: $TENSOR_PARALLEL, else 1",
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the line and do not start it")
    parser.add_argument("sglang", nargs="*", metavar="-- ...", help="further options of sglang.launch_server")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the line; then become the server."""
    line = command(options, gpu=gpu_present())
    print(shlex.join(["python", *line]), flush=True)
    if not options.only_print:
        if options.model.startswith(("/", "./", "../", "~")) and not Path(options.model).expanduser().exists():
            print(f"tessera serve: there is no {options.model}", file=sys.stderr)
            return 1
        os.execv(sys.executable, [sys.executable, *line])  # noqa: S606 - no shell: the arguments as they are
    return 0


def command(options: argparse.Namespace, *, gpu: bool) -> list[str]:
    """Arguments of Python that start the server."""
    return [
        *("-m", "sglang.launch_server"),
        *("--model-path", options.model),
        *("--host", options.host, "--port", str(options.port)),
        *(("--tp", str(options.tp)) if options.tp > 1 else ()),
        "--enable-return-hidden-states",
        *(() if gpu else WITHOUT_GPU),
        *options.sglang,
    ]
