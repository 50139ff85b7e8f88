"""What we count on SGLang's ``/metrics``. Main process only, so the scheduler's thread pays nothing."""

from tessera.delivery.outcome import Vitals


class Metrics:
    """Our counters and gauges, labelled with the model's name as SGLang labels its own.

    ``prometheus_client`` looks at ``PROMETHEUS_MULTIPROC_DIR`` when it is imported, and SGLang sets that at start: make
    one only where ``--enable-metrics`` is set, and after SGLang has begun.

    Args:
        model: its served name.
    """

    def __init__(self, model: str) -> None:
        from prometheus_client import Counter, Gauge

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tessera:{name}", text, ["model_name", *labels])

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"tessera:{name}", text, ["model_name", "dp_rank"], multiprocess_mode="mostrecent")

        self._model = model
        self._embeddings = counter("embeddings_total", "Embeddings answered.").labels(model)
        self._pooled = counter("rows_pooled_total", "Rows that went into the embeddings answered.").labels(model)
        self._states = counter("hidden_states_total", "Answers with raw hidden states.").labels(model)
        self._raw = counter("hidden_state_rows_total", "Raw rows answered.").labels(model)
        self._seconds = counter("row_read_seconds_total", "Time spent pooling and gathering rows.").labels(model)
        self._errors = counter("errors_total", "Errors of ours that were answered, by code.", "code")
        self._unavailable = counter("rows_unavailable_total", "Answers without rows to vouch for, by code.", "code")
        self._bytes = gauge("row_store_bytes", "Size of the row store.")
        self._slots = gauge("row_store_slots", "Rows that the row store can hold.")
        self._held = gauge("answer_bytes_held", "Bytes that answers with raw rows hold until they were sent.")
        self._waiting = gauge("answers_waiting", "Requests for raw rows that wait for room.")
        self._used = gauge("row_store_used_slots", "Rows whose KV slot is taken, by a request or by the prefix cache.")

    def embedded(self, rows: int) -> None:
        """An embedding over so many rows was put into an answer."""
        self._embeddings.inc()
        self._pooled.inc(rows)

    def returned(self, rows: int) -> None:
        """So many raw rows were put into an answer."""
        self._states.inc()
        self._raw.inc(rows)

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

    def note(self, vitals: Vitals) -> None:
        """What the scheduler says about a step in which requests finished."""
        self._seconds.inc(vitals.read_seconds)
        of = self._model, vitals.replica
        self._bytes.labels(*of).set(vitals.store_bytes)
        self._slots.labels(*of).set(vitals.slots)
        self._used.labels(*of).set(vitals.used_slots)
