"""Processes of the engine end where our options are given and nothing was decided, whatever SGLang calls in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.launching.command import environment
from tessera_testing.marks import is_installed
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.tiny import TINY

PROGRAM = """
import multiprocessing, sys
from tessera_kernels import cpu
cpu.enable()  # without a GPU, SGLang's modules cannot be imported otherwise
from sglang.srt.managers.data_parallel_controller import run_data_parallel_controller_process
from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
from sglang.srt.server_args import PortArgs, ServerArgs

if __name__ == "__main__":
    args = ServerArgs(model_path=sys.argv[1], device="cpu", enable_return_hidden_states=True)
    args.resolve_once()
    ports = PortArgs.init_new(args)
    for run, more in ((run_detokenizer_process, ()), (run_data_parallel_controller_process, (None,))):
        child = multiprocessing.get_context("spawn").Process(target=run, args=(args, ports, *more))
        child.start()
        child.join(100)
        print(child.exitcode)
        child.kill()
"""


@pytest.mark.engine
@pytest.mark.skipif(is_installed("<0.5.22"), reason="this SGLang does not load plugins in these processes")
def test_they_refuse_what_nobody_decided(interpreter: Interpreter, tmp_path: Path) -> None:
    """The detokenizer and the controller of replicas: nobody called ``ServerArgs.check_server_args``."""
    ended = interpreter.finish(("-c", PROGRAM, str(TINY)), environment({}), tmp_path, 280)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.split() == ["1", "1"]
    line = "tessera: refusing to start: rows: SGLang started this process without ServerArgs.check_server_args"
    assert ended.stderr.splitlines().count(line) == 2
