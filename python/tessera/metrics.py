"""What we count on SGLang's ``/metrics``. Main process only, so the scheduler's thread pays nothing."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tessera.errors import ANSWERED, WITHOUT_ROWS

if TYPE_CHECKING:  # clients import the names of what is counted, and have no torch
    from tessera.delivery.outcome import Vitals

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0),
)
"""Upper ends of the histograms' buckets."""
AWAIT_ROWS = "await_rows"
BUILD_FINGERPRINTS = "build_fingerprints"
COMPARE_FINGERPRINTS = "compare_fingerprints"
DECODE_VECTORS = "decode_vectors"
ENCODE_EMBEDDING = "encode_embedding"
ENCODE_STATES = "encode_states"
WORK = (AWAIT_ROWS, BUILD_FINGERPRINTS, COMPARE_FINGERPRINTS, DECODE_VECTORS, ENCODE_EMBEDDING, ENCODE_STATES)
"""What is timed in the main process."""
ROUTES = ("/encode", "/v1/embeddings", "/v1/toploc/verify")
"""Ours, whose answers are timed; SGLang times those of its own."""
READS = ("pool", "rows", "top")
"""Kinds of reads of the row store (`tessera.rows.kinds`)."""
VERDICTS = ("pass", "fail", "unverifiable")
"""Of claims."""


class Metrics:
    """Our counters, gauges and histograms, labelled with the model's name as SGLang labels its own.

    Each counter is there, at 0, from the start: a rate over one that begins at 1 misses the first event.

    ``prometheus_client`` looks at ``PROMETHEUS_MULTIPROC_DIR`` when it is imported, and SGLang sets that at start: make
    one only where ``--enable-metrics`` is set, and after SGLang has begun.

    Args:
        model: its served name.
        about: labels of the series that says what runs.
    """

    def __init__(self, model: str, about: Mapping[str, str]) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tessera:{name}", text, ["model_name", *labels])

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tessera:{name}", text, ["model_name", *labels], multiprocess_mode="mostrecent")

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"tessera:{name}", text, ["model_name", *labels], buckets=SECONDS)

        self._model = model
        self._embeddings = counter("embeddings_total", "Embeddings answered.").labels(model)
        self._pooled = counter("rows_pooled_total", "Rows that went into the embeddings answered.").labels(model)
        self._states = counter("hidden_states_total", "Answers with raw hidden states.").labels(model)
        self._raw = counter("hidden_state_rows_total", "Raw rows answered.").labels(model)
        self._injected = counter("injected_prompts_total", "Prompts with injected vectors.").labels(model)
        self._vectors = counter("injected_vectors_total", "Vectors injected into prompts.").labels(model)
        self._built = counter("fingerprints_built_total", "Fingerprints built.").labels(model)
        self._compared = counter("fingerprints_compared_total", "Claimed fingerprints compared.").labels(model)
        self._claims = counter("claims_total", "Claims answered by /v1/toploc/verify, by verdict.", "verdict")
        self._errors = counter("errors_total", "Errors of ours that were answered, by code.", "code")
        self._unavailable = counter("rows_unavailable_total", "Answers without rows to vouch for, by code.", "code")
        self._reads = histogram(
            "row_read_seconds", "Time of one read of the row store, by the kinds of read in it.", "kinds"
        )
        work = histogram("work_seconds", "Time of one piece of work in the main process, by kind.", "work")
        requests = histogram("request_seconds", "Time to answer a request to a route of ours.", "route")
        self._timed = {name: work.labels(model, name) for name in WORK}
        self._timed |= {name: requests.labels(model, name) for name in ROUTES}
        self._bytes = gauge("row_store_bytes", "Size of the row store.", "dp_rank")
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
        for verdict in VERDICTS:
            self._claims.labels(self._model, verdict)
        for kind in READS:
            self._reads.labels(self._model, kind)
        self.held(0, 0)

    def embedded(self, rows: int) -> None:
        """An embedding over so many rows was put into an answer."""
        self._embeddings.inc()
        self._pooled.inc(rows)

    def returned(self, rows: int) -> None:
        """So many raw rows were put into an answer."""
        self._states.inc()
        self._raw.inc(rows)

    def injected(self, vectors: int) -> None:
        """A prompt goes to the engine with so many vectors."""
        self._injected.inc()
        self._vectors.inc(vectors)

    def count_built(self, fingerprints: int) -> None:
        """So many fingerprints were built."""
        self._built.inc(fingerprints)

    def compared(self, fingerprints: int) -> None:
        """So many claimed fingerprints were compared with rows."""
        self._compared.inc(fingerprints)

    def judged(self, verdicts: Iterable[str]) -> None:
        """Claims were answered."""
        for verdict in verdicts:
            self._claims.labels(self._model, verdict).inc()

    def failed(self, code: str) -> None:
        """A request was answered with an error of ours."""
        self._errors.labels(self._model, code).inc()

    def held(self, amount: int, waiting: int) -> None:
        """So many bytes are held by answers on their way, and so many requests wait for some."""
        self._held.labels(self._model, 0).set(amount)
        self._waiting.labels(self._model, 0).set(waiting)

    def unavailable(self, code: str) -> None:
        """A request was answered, but without what its rows would have given."""
        self._unavailable.labels(self._model, code).inc()

    def took(self, what: str, seconds: float) -> None:
        """A piece of work, of `WORK`, or an answer, of `ROUTES`, took so long. Any thread."""
        self._timed[what].observe(seconds)

    def note(self, vitals: "Vitals", kinds: str) -> None:
        """What the scheduler says about a step in which requests finished, and which kinds of read it had."""
        if kinds:
            self._reads.labels(self._model, kinds).observe(vitals.read_seconds)
        of = self._model, vitals.replica
        self._bytes.labels(*of).set(vitals.store_bytes)
        self._slots.labels(*of).set(vitals.slots)
        self._used.labels(*of).set(vitals.used_slots)
        self._kv_bytes.labels(*of).set(vitals.kv_bytes)
        self._host_bytes.labels(*of).set(vitals.host_bytes)
