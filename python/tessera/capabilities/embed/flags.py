"""Options of embeddings: what ``/v1/embeddings`` and ``/encode`` do where a request does not say."""

import argparse
from contextlib import suppress
from dataclasses import dataclass

from tessera.capabilities.embed.options import EmbedOptions, Pooling
from tessera.flag import count, option


def _pooling(text: str) -> Pooling:
    with suppress(ValueError):
        return Pooling(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {', '.join(Pooling)}")


@dataclass(frozen=True)
class EmbedFlags:
    """A part of `tessera.flags.Flags`."""

    embeddings_pooling: Pooling = option(
        Pooling.MEAN,
        "what /v1/embeddings and /encode do where a request does not say: mean, last, max or first (default: mean)",
        _pooling,
        "HOW",
    )
    embeddings_normalize: bool = option(
        False, "/v1/embeddings and /encode scale vectors to length 1 where a request does not say normalize"
    )
    embeddings_dimensions: int | None = option(
        None,
        "how many values /v1/embeddings and /encode keep where a request does not say dimensions (default: all)",
        count,
        "N",
    )
    embeddings_text_only: bool = option(
        False, "/v1/embeddings refuses token ids: those of another tokenizer, which some clients send, are another text"
    )

    @property
    def embed_options(self) -> EmbedOptions:
        """What ``/v1/embeddings`` and ``/encode`` do where a request does not say."""
        return EmbedOptions(
            pooling=self.embeddings_pooling,
            normalize=self.embeddings_normalize,
            dimensions=self.embeddings_dimensions,
        )


def refused(flags: EmbedFlags, *, rows: bool) -> list[str]:
    """Why an option cannot be used; nothing where all can. ``rows``: whether the server keeps rows."""
    given = flags.embeddings_text_only or flags.embed_options != EmbedOptions()
    return ["--embeddings-… options need --enable-return-hidden-states: add it"] if given and not rows else []
