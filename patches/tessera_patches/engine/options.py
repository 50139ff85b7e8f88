"""SGLang's options, as it resolved them."""

from __future__ import annotations

from typing import Any


def options(owner: Any) -> Any:
    """The ``ServerArgs`` of a ``TokenizerManager``, a ``ModelRunner`` or a worker, with what SGLang decided itself."""
    return owner.server_args
