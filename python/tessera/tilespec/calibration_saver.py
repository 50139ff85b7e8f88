"""Saves calibrations for the next start, on a thread of its own."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tessera.tilespec import cache
from tessera.tilespec.cache import Profile
from tessera.tilespec.calibration import Calibrations

logger = logging.getLogger(__name__)


class CalibrationSaver:
    """Writes calibrations into the cached profile of a server.

    Args:
        profile: the profile, loaded or measured.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tessera-calibration-saver")
        self._written: Future[None] | None = None

    def save(self, calibrations: Calibrations) -> None:
        """Write them on the thread, without waiting. Skipped while the last ones are still being written."""
        if self._written is None or self._written.done():
            self._written = self._thread.submit(self._write, calibrations)

    def wait(self) -> None:
        """Wait until the last ones are on disk."""
        if self._written is not None:
            self._written.result()

    def _write(self, calibrations: Calibrations) -> None:
        try:
            cache.save(replace(self._profile, calibrations=calibrations))
        except OSError as error:
            logger.warning("tessera: what was learnt of drafts is not kept for the next start: %s", error)
