"""What injection has to know about the model that is served."""

from dataclasses import dataclass

import torch

from tessera.capabilities.inject.projections import Projections
from tessera.capabilities.inject.vectors import Bounds


@dataclass(frozen=True, slots=True)
class Model:
    """Facts and limits, known in the main process once the server starts.

    Attributes:
        enabled: ``--enable-injection``.
        dtype: of its embeddings.
        context_length: the most tokens of a prompt.
        projections: with them H, its hidden size.
        max_magnitude: ``--injection-max-magnitude``.
        max_bytes: ``--injection-max-megabytes``, in bytes.
    """

    enabled: bool
    dtype: torch.dtype
    context_length: int
    projections: Projections
    max_magnitude: float
    max_bytes: int

    @property
    def hidden_size(self) -> int:
        return self.projections.hidden_size

    def bounds(self, *, projected: bool) -> Bounds:
        """What vectors may be: of width H, or ``projected`` through something that takes another."""
        widths = frozenset(self.projections.widths if projected else [self.hidden_size])
        return Bounds(widths, self.context_length, self.max_bytes, self.max_magnitude)
