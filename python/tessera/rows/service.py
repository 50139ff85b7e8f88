"""Read the rows of requests that finish in a step, or got far enough: one read for all, one outcome for each."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tessera.capabilities.registry import Requested
from tessera.capability import Progress
from tessera.delivery.outcome import Outcome, Part
from tessera.errors import ROW_STORE_FAILED, ROWS_NOT_COLLECTED, WEIGHTS_CHANGED, RequestFailed
from tessera.rows.kinds import BY_READ, Kind, Placed
from tessera.rows.reader import Read
from tessera.rows.reads import PromptIds
from tessera.rows.store import RowStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that finished, or got far enough for a read, and whose KV slots are still its own.

    Attributes:
        key: what the main process gave the request: our token and SGLang's request id.
        request: the request's row in ``req_to_token``.
        prompt_tokens: N.
        output_tokens: M, through the stop; 0 where nothing was generated.
        requested: what it asks for.
        done: how many reads of each capability were made before, while it ran.
        running: whether it goes on.
        prompt_ids: its prompt's token ids.
    """

    key: str
    request: int
    prompt_tokens: int
    output_tokens: int
    requested: Requested
    done: Mapping[str, int] = field(default_factory=dict)
    running: bool = False
    prompt_ids: Sequence[int] = ()


class Reader(Protocol):
    """What we need of `tessera.rows.reader.RowReader`."""

    def start(self, reads: Mapping[Kind, Sequence[Placed]]) -> Read: ...

    def end_step(self) -> None: ...


class RowService:
    """Collects finished requests and reads their rows together. Runs on the scheduler's thread, and never waits.

    Args:
        reader: reads the row store.
        put: takes the outcomes of a step and the read that fetches what belongs to them.
        store: what is read.
    """

    def __init__(
        self,
        reader: Reader,
        put: Callable[[list[Outcome], Read | None], None],
        store: RowStore,
    ) -> None:
        self._reader = reader
        self._put = put
        self._store = store
        self._outcomes: list[Outcome] = []
        self._reads: dict[Kind, list[Placed]] = {}

    def note_finished(self, request: Finished) -> None:
        """Note a request. Its rows are read at the next `flush`, together with all others noted."""
        try:
            found = self._wanted(request)
        except RequestFailed as error:
            self._outcomes.append(Outcome(request.key, code=error.code, message=error.reason))
            return
        except Exception as error:  # noqa: BLE001 - the boundary to SGLang's scheduler; it is logged there
            self.note_failed(request.key, error)
            return
        parts = []
        for name, read in found:
            kind = BY_READ[type(read)]
            parts.append(_part(name, kind, read, request.prompt_ids))
            if kind.read is not PromptIds:
                self._reads.setdefault(kind, []).append(Placed(request.request, read))
        again = not any(request.done.values())
        self._outcomes.append(Outcome(request.key, tuple(parts), more=request.running, resets=again))

    def note_failed(self, key: str, error: Exception) -> None:
        """Note that a request gets no rows, and the reason."""
        logger.error("tessera: no rows for request %s", key, exc_info=error)
        self._outcomes.append(Outcome(key, code=ROWS_NOT_COLLECTED, message=f"no rows for this request: {error}"))

    def note_outdated(self, request: Finished) -> None:
        """Note that a request gets no rows, for they are not all of the same weights. Its answer stands."""
        try:
            found = [(name, read) for name, read in self._wanted(request) if isinstance(read, PromptIds)]
        except RequestFailed:
            found = []
        parts = tuple(_part(name, BY_READ[PromptIds], read, request.prompt_ids) for name, read in found)
        message = "the weights changed during this request"
        self._outcomes.append(Outcome(request.key, parts, code=WEIGHTS_CHANGED, message=message))

    def flush(self) -> None:
        """Begin to read the rows of all requests noted; to be called before anything can reuse their slots."""
        if self._outcomes:
            outcomes, reads = self._outcomes, self._reads
            self._outcomes, self._reads = [], {}
            self._put(*self._read(outcomes, reads))
        self.settle()

    def settle(self) -> None:
        """Make later reads wait for the work that is on the current stream now."""
        self._reader.end_step()

    def _wanted(self, request: Finished) -> list[tuple[str, Any]]:
        """The reads of a request, each with its capability."""
        found = []
        for name, (capability, options) in request.requested.items():
            progress = Progress(
                request.prompt_tokens,
                request.output_tokens,
                request.running,
                request.done.get(name, 0),
                self._store.rows.shape[1],
            )
            found += [(name, read) for read in capability.reads(options, progress)]
        return found

    def _read(self, outcomes: list[Outcome], reads: dict[Kind, list[Placed]]) -> tuple[list[Outcome], Read | None]:
        if self._store.broken is not None:
            why = f"the row store is broken, restart the server: {self._store.broken}"
            return _failed(outcomes, why), None
        try:
            return outcomes, self._reader.start(reads) if reads else None
        except Exception as error:  # the same boundary: the requests of this step fail, the server lives
            logger.exception("tessera: reading rows failed")
            return _failed(outcomes, f"reading rows failed: {error}"), None


def _part(name: str, kind: Kind, read: Any, prompt_ids: Sequence[int]) -> Part:
    return Part(name, kind.name, kind.note(prompt_ids if isinstance(read, PromptIds) else read))


def _failed(outcomes: list[Outcome], message: str) -> list[Outcome]:
    """The outcomes, with those that have rows replaced by failures."""
    return [
        replace(outcome, parts=(), code=ROW_STORE_FAILED, message=message) if outcome.has_rows else outcome
        for outcome in outcomes
    ]
