"""Responses of many provers, so many servers at a time, and a verifier that measures all of them."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tessera.capabilities.fingerprints.calibration.distances import Measured
from tessera.capabilities.fingerprints.calibration.prover import Response, ask, check
from tessera.launching.server import Server

Say = Callable[[str], None]

VERIFIER = "the verifier"
"""The kind of the server that verifies; it makes no responses."""


class Prover(NamedTuple):
    """A server that makes responses.

    Attributes:
        kind: what its responses are called.
        model: its folder.
        args: options of its server.
        weights: fills a temporary folder with what is served instead of ``model``; None serves the model.
    """

    kind: str
    model: Path
    args: tuple[str, ...]
    weights: Callable[[Path], None] | None = None


@dataclass
class Campaign:
    """Makes responses and measures their distances.

    Attributes:
        responses: the number of responses of each prover.
        tokens: the number of tokens of each.
        at_once: how many servers run at the same time.
        keep: a file to which responses are appended, and whose responses are used again; None keeps nothing.
        say: called with lines about the progress.
    """

    responses: int
    tokens: int
    at_once: int
    keep: Path | None
    say: Say
    made: dict[str, list[Response]] = field(default_factory=dict)
    _begin: float = field(default_factory=time.monotonic)

    def run(
        self, provers: Sequence[Prover], verifier: Prover, derived: Callable[[], dict[str, list[Response]]]
    ) -> dict[str, list[Measured]]:
        """All distances, by kind.

        Args:
            provers: whose responses are made.
            verifier: started beside the last of them; its kind is `VERIFIER`.
            derived: what else is verified, made of `made`.

        Raises:
            ServerStartError: a server did not start; what others made is kept.
        """
        self._load(provers)
        jobs = [*(prover for prover in provers if prover.kind not in self.made), verifier]
        groups = [jobs[i : i + self.at_once] for i in range(0, len(jobs), self.at_once)]
        self.say(f"{len(jobs)} server starts in {len(groups)} groups, {self.responses} responses of each prover")
        for group in groups[:-1]:
            with self._served(group):
                pass
        with self._served(groups[-1]) as urls:
            return self._verify(urls[-1], derived())

    @contextmanager
    def _served(self, group: Sequence[Prover]) -> Iterator[list[str]]:
        """Their servers' addresses, once all responses are made."""
        self.say(f"starting: {', '.join(one.kind for one in group)}")
        with tempfile.TemporaryDirectory(prefix="tessera-cheats-") as folder:
            servers = [self._server(one, Path(folder, str(number))) for number, one in enumerate(group)]
            with ThreadPoolExecutor(len(group)) as pool:
                try:
                    for server in servers:
                        server.start()
                    for server in servers:
                        server.wait_ready()
                    self._log("all of them answer")
                    urls = [server.url for server in servers]
                    list(pool.map(self._ask, group, urls))
                    yield urls
                finally:
                    list(pool.map(Server.stop, servers))

    def _server(self, prover: Prover, folder: Path) -> Server:
        model = prover.model
        if prover.weights is not None:
            folder.mkdir()
            prover.weights(folder)
            model = folder
        return Server(model, "--toploc-verification", *prover.args)

    def _ask(self, prover: Prover, url: str) -> None:
        if prover.kind == VERIFIER:
            return
        made = ask(url, self.responses, self.tokens)
        if self.keep is not None:
            with self.keep.open("a") as file:
                file.write(json.dumps(self._about(prover) | {"made": made}) + "\n")
        self.made[prover.kind] = made
        self._log(f"{len(made)} responses: {prover.kind}")

    def _verify(self, url: str, derived: dict[str, list[Response]]) -> dict[str, list[Measured]]:
        measured = {}
        for kind, responses in {**self.made, **derived}.items():
            measured[kind] = check(url, responses)
            self._log(f"{len(responses)} verified: {kind}")
        return measured

    def _load(self, provers: Sequence[Prover]) -> None:
        if self.keep is None or not self.keep.exists():
            return
        for line in self.keep.read_text().splitlines():
            found = json.loads(line)
            made = found.pop("made")
            for prover in provers:
                if found == self._about(prover):
                    self.made[prover.kind] = [Response(*one) for one in made]
                    self._log(f"{len(made)} responses kept: {prover.kind}")

    def _about(self, prover: Prover) -> dict[str, Any]:
        description = {"kind": prover.kind, "model": str(prover.model), "args": list(prover.args)}
        return {**description, "responses": self.responses, "tokens": self.tokens}

    def _log(self, what: str) -> None:
        self.say(f"{time.monotonic() - self._begin:4.0f} s: {what}")
