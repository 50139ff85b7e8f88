"""Server options for tests of the logic that decides from them."""

from types import SimpleNamespace
from typing import Any


def server_options(**values: Any) -> Any:
    """A `tessera.server_options.ServerOptions` that has these alone."""
    return SimpleNamespace(**values)
