"""The client of a model in this process, for where there is no server."""

from __future__ import annotations

import math
from pathlib import Path

from tessera.client.local_transport import LocalTransport
from tessera.client.options import Timeouts
from tessera.client.retry import NEVER
from tessera.client.sync import Client


class LocalClient(Client):
    """A `Client` whose HTTP transport is a model in this process: `tessera.client.local_transport`.

    Texts, vectors and rows are those of a server with the same weights, within the noise of their dtype; sampling draws
    other random numbers. What only a server has (constrained decoding, penalties, injection, adapters, fingerprints)
    raises `Unsupported`. There is no time limit but ``timeout=``. Not for several threads at once.

    Args:
        model: folder of a Hugging Face model, or its name in the local cache.
        seed: of the sampling; by default another each time.

    Raises:
        Unsupported: torch or transformers is not installed, or the model cannot be loaded.
    """

    def __init__(self, model: str | Path, *, seed: int | None = None) -> None:
        timeouts = Timeouts(request=math.inf, batch=math.inf)
        super().__init__("http://local", timeouts=timeouts, retry=NEVER, transport=LocalTransport(model, seed))
