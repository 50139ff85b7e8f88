"""Metrics of TileSpec's choices and of expected against measured times, on ``/metrics``. Scheduler process."""

from collections import Counter
from typing import TYPE_CHECKING

from tessera.tilespec.costs import CostTable
from tessera.tilespec.policy import Choice

if TYPE_CHECKING:
    import prometheus_client

INTERVAL = 32
"""Steps between two updates: a counter that is shared between processes is slow."""


class Tally:
    """Sums over steps, added to the counters every `INTERVAL` steps.

    Only with ``--enable-metrics``: ``prometheus_client`` reads ``PROMETHEUS_MULTIPROC_DIR`` at import, after SGLang has
    set it.

    Args:
        model: the served model name.
        costs: has what there is to choose from: each choice has its series from the start.
    """

    def __init__(self, model: str, costs: CostTable) -> None:
        import prometheus_client

        def counter(name: str, text: str, *labels: str) -> prometheus_client.Counter:
            return prometheus_client.Counter(f"tessera:{name}", text, ["model_name", *labels])

        self._model = model
        self._steps = counter(
            "tilespec_steps_total", "Decode steps, by draft steps and size of the verification.", "drafted", "tier"
        )
        self._explored = counter("tilespec_explored_steps_total", "Decode steps chosen to learn.").labels(model)
        self._verified = counter("tilespec_verified_tokens_total", "Tokens verified, anchors included.").labels(model)
        self._hoped = counter("tilespec_expected_drafts_total", "Draft tokens expected to be accepted.").labels(model)
        self._accepted = counter("tilespec_accepted_drafts_total", "Draft tokens accepted.").labels(model)
        self._expected = counter(
            "tilespec_expected_seconds_total", "Time expected of the steps that were timed."
        ).labels(model)
        self._measured = counter("tilespec_measured_seconds_total", "Time that the timed steps took.").labels(model)
        for steps in costs.steps:
            for tier in (None, *(costs.tiers.sizes if costs.tiers and steps else ())):
                self._series(steps, tier)
        self._clear()

    def add(self, choice: Choice, measured: float | None) -> None:
        """Add a step, with the seconds that it took, if known."""
        self._chosen[choice.steps, choice.tier] += 1
        self._learning += choice.exploring
        self._tokens += choice.tokens
        self._gain += choice.gain
        if measured is not None:
            self._seconds += measured
            self._promised += choice.seconds
        self._added += 1
        if self._added == INTERVAL:
            self.flush()

    def accept(self, drafts: int) -> None:
        """Add accepted draft tokens; known with each fit of a calibration."""
        self._accepted.inc(drafts)

    def flush(self) -> None:
        """Add the sums to the counters."""
        for (steps, tier), times in self._chosen.items():
            self._series(steps, tier).inc(times)
        self._explored.inc(self._learning)
        self._verified.inc(self._tokens)
        self._hoped.inc(self._gain)
        self._expected.inc(self._promised)
        self._measured.inc(self._seconds)
        self._clear()

    def _series(self, steps: int, tier: int | None) -> "prometheus_client.Counter":
        return self._steps.labels(self._model, str(steps), "all" if tier is None else str(tier))

    def _clear(self) -> None:
        self._chosen: Counter[tuple[int, int | None]] = Counter()
        self._added = self._learning = self._tokens = 0
        self._promised = self._seconds = self._gain = 0.0
