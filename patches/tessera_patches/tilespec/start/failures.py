"""Failures of the start, which end the process."""

import contextlib
import logging
from collections.abc import Iterator

from tessera.errors import StartRefused
from tessera_patches.core.apply import start_error

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def exit_with_traceback(doing: str, hint: str = "") -> Iterator[None]:
    """End the process if the block fails, with the traceback and a line."""
    try:
        yield
    except StartRefused:  # it says why
        raise
    except Exception as error:
        logger.exception("tessera: %s failed", doing)
        raise start_error(f"--tile-spec: {doing} failed: {error}{hint}") from error
