"""A server whose processes are forked from one that has imported the engine."""

from __future__ import annotations

from typing import IO, Any

from tessera.launching.server import Process, Server
from tessera_testing.prepared.interpreter import Interpreter


class ForkedServer(Server):
    """`Server`, in a second or two; where an import would depend on its environment, it is started as `Server` is.

    Args:
        interpreter: which it is forked from.
    """

    def __init__(self, interpreter: Interpreter, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._interpreter = interpreter

    def _launch(self, log: IO[bytes]) -> Process:
        if self._interpreter.differing(self._env):
            return super()._launch(log)
        return self._interpreter.run(self._command[1:], self._env, log)
