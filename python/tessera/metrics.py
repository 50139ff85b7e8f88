"""What we count on SGLang's ``/metrics``. Main process only, so the scheduler's thread pays nothing."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tessera.errors import ANSWERED, WITHOUT_ROWS

if TYPE_CHECKING:  # clients import capabilities, and have no torch
    from tessera.delivery.outcome import RowStoreStats

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0),
)
"""Upper ends of the histograms' buckets."""
AWAIT_ROWS = "await_rows"
"""Name of what is timed in the main process, beside the `work` of capabilities."""
READS = ("pool", "rows", "top")
"""Kinds of reads of the row store (`tessera.rows.kinds`)."""


class Counter(NamedTuple):
    """A counter on ``/metrics``.

    Attributes:
        name: without ``tessera:``.
        text: what it counts.
        label: by what it is divided; "" where it is not.
        values: all values of the label.
    """

    name: str
    text: str
    label: str = ""
    values: tuple[str, ...] = ("",)


class Metrics:
    """Our counters, gauges and histograms, labelled with the model's name as SGLang labels its own.

    Each counter is there, at 0, from the start: a rate over one that begins at 1 misses the first event.

    ``prometheus_client`` looks at ``PROMETHEUS_MULTIPROC_DIR`` when it is imported, and SGLang sets that at start: make
    one only where ``--enable-metrics`` is set, and after SGLang has begun.

    Args:
        model: its served name.
        about: labels of the series that says what runs.
        counters: of capabilities.
        work: names of what is timed in the main process.
        routes: our routes, whose answers are timed; SGLang times its own.
    """

    def __init__(
        self,
        model: str,
        about: Mapping[str, str],
        *,
        counters: Iterable[Counter],
        work: Iterable[str],
        routes: Iterable[str],
    ) -> None:
        import prometheus_client as prometheus

        def counter(name: str, text: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"tessera:{name}", text, ["model_name", *labels])

        def gauge(name: str, text: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(f"tessera:{name}", text, ["model_name", *labels], multiprocess_mode="mostrecent")

        def histogram(name: str, text: str, *labels: str) -> prometheus.Histogram:
            return prometheus.Histogram(f"tessera:{name}", text, ["model_name", *labels], buckets=SECONDS)

        self._model = model
        self._counters = {}
        for own in counters:
            made = counter(own.name, own.text, *filter(None, [own.label]))
            for value in own.values:
                self._counters[own.name, value] = made.labels(model, *filter(None, [value]))
        self._errors = counter("errors_total", "Tessera errors that were answered, by code.", "code")
        self._unavailable = counter("rows_unavailable_total", "Answers without rows to vouch for, by code.", "code")
        self._reads = histogram(
            "row_read_seconds", "Time of one read of the row store, by the kinds of read in it.", "kinds"
        )
        works = histogram("work_seconds", "Time of one piece of work in the main process, by kind.", "work")
        answers = histogram("request_seconds", "Time to answer a request to a Tessera route.", "route")
        self._timed = {name: works.labels(model, name) for name in (AWAIT_ROWS, *work)}
        self._timed |= {name: answers.labels(model, name) for name in routes}
        self._bytes = gauge("row_store_bytes", "Size of the row store beside the KV cache.", "dp_rank")
        self._slots = gauge("row_store_slots", "Rows that the row store can hold.", "dp_rank")
        self._used = gauge(
            "row_store_used_slots", "Rows whose KV slot is taken, by a request or by the prefix cache.", "dp_rank"
        )
        self._host_bytes = gauge("row_store_host_bytes", "Size of the rows in the host's memory.", "dp_rank")
        self._kv_bytes = gauge("kv_cache_bytes", "Size of the KV cache beside the row store.", "dp_rank")
        self._held = gauge("answer_bytes_held", "Bytes that answers with raw rows hold until sent.", "dp_rank")
        self._waiting = gauge("answers_waiting", "Requests for raw rows that wait for room.", "dp_rank")
        info = gauge("server_info", "1; versions and options of the server.", "version", "sglang", "on", "options")
        info.labels(model, *(about[name] for name in ("version", "sglang", "on", "options"))).set(1)
        self._begin()

    def _begin(self) -> None:
        for code in ANSWERED:
            self._errors.labels(self._model, code)
        for code in WITHOUT_ROWS:
            self._unavailable.labels(self._model, code)
        for kind in READS:
            self._reads.labels(self._model, kind)
        self.set_held(0, 0)

    def count(self, counter: Counter, amount: int, value: str) -> None:
        """Add to a capability's counter; ``value`` is that of its label."""
        self._counters[counter.name, value].inc(amount)

    def count_error(self, code: str) -> None:
        """Count a request that was answered with one of our errors."""
        self._errors.labels(self._model, code).inc()

    def set_held(self, amount: int, waiting: int) -> None:
        """Set how many bytes unsent answers hold, and how many requests wait for room."""
        self._held.labels(self._model, 0).set(amount)
        self._waiting.labels(self._model, 0).set(waiting)

    def count_unavailable(self, code: str) -> None:
        """Count a request that was answered without the values that its rows would have given."""
        self._unavailable.labels(self._model, code).inc()

    def observe_seconds(self, what: str, seconds: float) -> None:
        """Record how long a piece of work, or the answer of a route, took. Any thread may call it."""
        self._timed[what].observe(seconds)

    def record_row_store(self, stats: "RowStoreStats", kinds: str) -> None:
        """Record the row-store statistics of a step, and the kinds of read in it ("" for none)."""
        if kinds:
            self._reads.labels(self._model, kinds).observe(stats.read_seconds)
        labels = self._model, stats.replica
        self._bytes.labels(*labels).set(stats.store_bytes)
        self._slots.labels(*labels).set(stats.slots)
        self._used.labels(*labels).set(stats.used_slots)
        self._kv_bytes.labels(*labels).set(stats.kv_bytes)
        self._host_bytes.labels(*labels).set(stats.host_bytes)
