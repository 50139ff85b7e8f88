"""What was learnt of acceptance while serving, for the next start: written by a thread that nobody waits for."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tessera.tilespec import cache
from tessera.tilespec.cache import Profile
from tessera.tilespec.calibration import Calibrations

logger = logging.getLogger(__name__)


class Keeper:
    """Keeps calibrations with a profile.

    Args:
        profile: as it was loaded, or measured.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tessera-keeper")
        self._written: Future[None] | None = None

    def __call__(self, calibrations: Calibrations) -> None:
        """Write them, unless the last ones are being written still. Returns at once."""
        if self._written is None or self._written.done():
            self._written = self._thread.submit(self._write, calibrations)

    def wait(self) -> None:
        """Until what was given is on disk."""
        if self._written is not None:
            self._written.result()

    def _write(self, calibrations: Calibrations) -> None:
        try:
            cache.save(replace(self._profile, calibrations=calibrations))
        except OSError as error:
            logger.warning("tessera: what was learnt of drafts is not kept for the next start: %s", error)
