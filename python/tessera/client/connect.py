"""One call that picks: a server if it is given an address, else a model in this process."""

from pathlib import Path

from tessera.client.interface import Inference
from tessera.client.options import Timeouts
from tessera.client.retry import Retry
from tessera.client.sync import Client


def connect(
    url_or_model: str | Path,
    *,
    api_key: str | None = None,
    timeouts: Timeouts | None = None,
    retry: Retry | None = None,
) -> Inference:
    """A client that works, or an error now.

    Args:
        url_or_model: ``http://…`` or ``https://…`` of a server; anything else is a model, by its folder or its name,
            that Hugging Face transformers loads into this process.
        api_key: as `Client`; a model needs none.
        timeouts: as `Client`; a model has none.
        retry: as `Client`; a model has none.

    Raises:
        ClientError: the server does not generate, see `Inference.health_check`; or transformers is not installed, or
            cannot load the model.
    """
    if not str(url_or_model).startswith(("http://", "https://")):
        from tessera.client.local import LocalClient

        return LocalClient(url_or_model)
    client = Client(str(url_or_model), api_key=api_key, timeouts=timeouts, retry=retry)
    try:
        client.health_check()
    except BaseException:
        client.close()
        raise
    return client
