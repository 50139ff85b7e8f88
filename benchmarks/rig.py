r"""Servers for benchmarks: started for one run, or left running for several.

A start costs an 8B model a minute and a half, and a borrowed GPU host ends each command after ten minutes. So

  python benchmarks/rig.py up --servers stock ours injecting --model /models/8b --logs /tmp/rig -- \
      --load-format dummy --attention-backend fa3 --mem-fraction-static 0.9 --max-total-tokens 65536
  python benchmarks/bench_embeddings.py --model /models/8b ... -- (the same arguments)
  python benchmarks/bench_encode.py ...
  python benchmarks/rig.py down

starts servers side by side, and leaves them. A benchmark takes one of them if model, arguments and environment are
exactly those that it would start a server with; else it starts its own. Give --max-total-tokens: servers that start
together cannot each take a share of the memory that is free.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple, Self

from tessera.launching.processes import ProcessFamily
from tessera.launching.server import Server

STATE = Path(f"/tmp/tessera-rig-{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}.json")  # noqa: S108 - a borrowed machine
STAGGER_SECONDS = 4.0
STOP_SECONDS = 20.0


class Variant(NamedTuple):
    """What makes a server this one: its arguments beside the common ones, and its environment."""

    args: tuple[str, ...]
    env: dict[str, str]


_ROWS = "--enable-return-hidden-states"
_OFF = {"TESSERA_DISABLE": "1"}
VARIANTS = {
    "stock": Variant((), _OFF),
    "stock-rows": Variant((_ROWS,), _OFF),
    "stock-uncached": Variant(("--disable-radix-cache",), _OFF),
    "ours": Variant((_ROWS,), {}),
    "injecting": Variant(("--enable-injection",), {}),
    "rows-injecting": Variant((_ROWS, "--enable-injection"), {}),
}


class FleetEndedError(RuntimeError):
    """The others were stopped meanwhile: this one is not started any more."""


class Fleet:
    """Servers that start side by side, also from several threads, a few seconds apart. None of them outlives it."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._ended = False
        self._starting = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._starting:
            self._ended = True
        with ThreadPoolExecutor(max(len(self._servers), 1)) as pool:  # each takes seconds to end
            list(pool.map(Server.stop, self._servers))

    def start(self, server: Server) -> None:
        """Start it, without waiting until it is ready.

        Raises:
            FleetEndedError: too late.
        """
        with self._starting:
            if self._ended:
                raise FleetEndedError
            self._servers.append(server)
            server.start()
            time.sleep(STAGGER_SECONDS)

    @contextmanager
    def serving(self, server: Server, seconds: float) -> Iterator[Server]:
        """Start it, wait until it is ready, and stop it at the end.

        Raises:
            ServerStartError: it ended, or `seconds` have passed.
            FleetEndedError: too late.
        """
        try:
            self.start(server)
            server.wait_ready(seconds)
            yield server
        finally:
            server.stop()


def serve(servers: ExitStack, variant: str, model: Path, server_args: list[str], log: Path) -> str:
    """Return the URL of a server.

    Args:
        servers: ends what is started here.
        variant: name of one of `VARIANTS`.
        model: folder of the model.
        server_args: the arguments of every server of a run.
        log: where the log goes of a server that is started here.

    Raises:
        ServerStartError: it did not start.
    """
    running = _running().get(_key(variant, model, server_args))
    if running:
        print(f"{variant}: the server that is running at {running['url']}", flush=True)
        return str(running["url"])
    return servers.enter_context(new_server(variant, model, server_args, log)).url


def serve_all(servers: ExitStack, options: argparse.Namespace, *variants: str, prefix: str = "") -> list[str]:
    """Return the URLs of several, by a benchmark's ``model``, ``server_args`` and ``out``, beside which their logs go.

    One after the other: each sizes its KV pool by the memory that is free.
    """
    logs: Path = options.out.parent
    return [serve(servers, name, options.model, options.server_args, logs / f"{prefix}{name}.log") for name in variants]


def up(options: argparse.Namespace) -> None:
    """Start the servers, a few seconds apart, and leave them running once all are ready."""
    model, args = options.model, options.server_args
    servers = {name: new_server(name, model, args, options.logs / f"{name}.log") for name in options.servers}
    with ExitStack() as undo:
        for server in servers.values():
            undo.callback(server.stop)
            server.start()
            time.sleep(STAGGER_SECONDS)
        for server in servers.values():
            server.wait_ready()
        undo.pop_all()
    started = {_key(name, model, args): {"url": one.url, "pid": one.pid} for name, one in servers.items()}
    STATE.write_text(json.dumps(_running() | started), encoding="utf-8")


def down(_: argparse.Namespace) -> None:
    """Stop all that `up` left running."""
    end([server["pid"] for server in _running().values()])
    STATE.unlink(missing_ok=True)


def end(pids: Sequence[int]) -> None:
    """Stop servers of an earlier command by their process ids, side by side: each takes seconds to end."""
    with ThreadPoolExecutor(max(len(pids), 1)) as pool:
        list(pool.map(lambda pid: ProcessFamily(pid).end(STOP_SECONDS), pids))


def new_server(
    variant: str, model: Path, server_args: list[str], log: Path, env: Mapping[str, str] | None = None
) -> Server:
    """One of `VARIANTS`, not started, with more in its environment."""
    args, own = VARIANTS[variant]
    return Server(model, *server_args, *args, env={**own, **(env or {})}, log_path=log, progress=print)


def _key(variant: str, model: Path, server_args: list[str]) -> str:
    return json.dumps([str(model.resolve()), server_args, VARIANTS[variant]])


def _running() -> dict[str, Any]:
    return dict(json.loads(STATE.read_text(encoding="utf-8"))) if STATE.exists() else {}


def main() -> None:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True, metavar="up|down")
    start = actions.add_parser("up", help="start servers and leave them running")
    start.add_argument("--servers", nargs="+", choices=VARIANTS, required=True, help="which")
    start.add_argument("--model", type=Path, required=True, help="model folder")
    start.add_argument("--logs", type=Path, required=True, help="folder for their logs")
    start.add_argument("server_args", nargs="*", help="after --: arguments of every server")
    start.set_defaults(action=up)
    actions.add_parser("down", help="stop them").set_defaults(action=down)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
