"""Sampling penalties for each token of a draft, by all tokens that were generated before it.

The formulas are SGLang's without speculation; so are the tokens that count: all generated ones, and no others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import pad


class Penalties(NamedTuple):
    """The penalties of a batch, on its device. Tensors are never changed in place, as forwards may still read them."""

    counts: torch.Tensor
    """float32 ``[bs, V]``: how often each token was generated, as far as the host knows."""
    host_tokens: torch.Tensor
    """int64 ``[bs]``: how many generated tokens the host knows."""
    prompts: torch.Tensor
    """int64 ``[bs]``: prompt lengths."""
    frequency: torch.Tensor
    """float32 ``[bs, 1]``: ``frequency_penalty``, subtracted for each time that a token was generated."""
    presence: torch.Tensor
    """float32 ``[bs, 1]``: ``presence_penalty``, subtracted once for each generated token."""
    repetition: torch.Tensor
    """float32 ``[bs, 1]``: ``repetition_penalty``, divides the token's logit if it is positive, else multiplies it."""
    min_new_tokens: torch.Tensor
    """int64 ``[bs]``: ``min_new_tokens``."""
    stops: torch.Tensor
    """int64 ``[bs, S]``: stop tokens, padded with 0."""
    stop_penalties: torch.Tensor
    """float32 ``[bs, S]``: added to their logits until there are `min_new_tokens`: -inf, and 0 for padding."""

    def with_tokens(self, tokens: torch.Tensor, lens: torch.Tensor) -> Penalties:
        """Count the first ``lens`` ``[bs]`` tokens of each row of ``tokens`` ``[bs, n]``, which are new to the host."""
        new = torch.arange(tokens.shape[1], device=tokens.device) < lens.unsqueeze(1)
        return self._replace(
            counts=self.counts.scatter_add(1, tokens, new.float()), host_tokens=self.host_tokens + lens
        )

    def select(self, places: torch.Tensor) -> Penalties:
        """The penalties of the requests at ``places``, int64 ``[n]``."""
        return Penalties._make(part[places] for part in self)

    def concat(self, other: Penalties) -> Penalties:
        """The penalties of both batches, one after the other."""
        width = max(self.stops.shape[1], other.stops.shape[1])
        both = (self._padded(width), other._padded(width))
        return Penalties._make(map(torch.cat, zip(*both, strict=True)))

    def _padded(self, width: int) -> Penalties:
        stops, stop_penalties = (pad(part, (0, width - part.shape[1])) for part in (self.stops, self.stop_penalties))
        return self._replace(stops=stops, stop_penalties=stop_penalties)

    def depend_on_drafts(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """Whether each request's penalties depend on the draft tokens before a token, bool ``[bs]``.

        Args:
            seq_lens: as in `penalize_drafts`.
        """
        counting = (self.frequency != 0) | (self.presence != 0) | (self.repetition != 1)
        return counting.squeeze(1) | (self._generated(seq_lens) < self.min_new_tokens)

    def penalize(self, logits: torch.Tensor) -> None:
        """Penalize logits ``[bs, V]`` of the next token (in place). The host knows all tokens before it."""
        requests = torch.arange(len(logits), device=logits.device)
        none = requests.unsqueeze(1)[:, :0]
        self._penalize(logits, requests, none, none.bool(), self.host_tokens)

    def penalize_drafts(
        self,
        logits: torch.Tensor,
        requests: torch.Tensor,
        depths: torch.Tensor,
        seq_lens: torch.Tensor,
        tokens: torch.Tensor,
        recent: torch.Tensor | None,
    ) -> None:
        """Penalize logits of verified tokens (in place), each by all tokens up to its own.

        Args:
            logits: ``[rows, V]``.
            requests: each row's request in the batch, int64 ``[rows]``.
            depths: each row's depth in its draft, int64 ``[rows]``; 0 is the anchor.
            seq_lens: tokens before the anchor, int64 ``[bs]``.
            tokens: anchors and draft tokens, int64 ``[bs, N]``.
            recent: the last tokens before the anchor, in order, int64 ``[bs, R]``, with all that the host does not
                know;
                None if it may not know the anchor alone.
        """
        sequence, first = (tokens, 0) if recent is None else (torch.cat([recent, tokens], 1), recent.shape[1])
        generated = self._generated(seq_lens)
        unknown = (generated - self.host_tokens)[requests]
        column = torch.arange(sequence.shape[1], device=logits.device)
        after = column > (first - unknown).unsqueeze(1)
        seen = after & (column <= (first + depths).unsqueeze(1))
        self._penalize(logits, requests, sequence[requests], seen, generated[requests] + depths)

    def _generated(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """Generated tokens of each request, with its anchor, int64 ``[bs]``."""
        return seq_lens + 1 - self.prompts

    def _penalize(
        self,
        logits: torch.Tensor,
        requests: torch.Tensor,
        more: torch.Tensor,
        seen: torch.Tensor,
        generated: torch.Tensor,
    ) -> None:
        """Penalize by `counts`, and by tokens ``more`` ``[rows, E]`` where ``seen``."""
        values = logits.float()
        counts = self.counts[requests].scatter_add_(1, more, seen.float())
        values.addcmul_(counts, self.frequency[requests], value=-1)
        present = counts > 0
        values.sub_(present * self.presence[requests])
        is_below = (generated < self.min_new_tokens[requests]).unsqueeze(1)
        values.scatter_add_(1, self.stops[requests], self.stop_penalties[requests].where(is_below, 0.0))
        factor = self.repetition[requests].where(present, 1.0)
        values.mul_(factor.where(values < 0, 1 / factor))
        if values is not logits:
            logits.copy_(values)


class RecentTokens:
    """The last accepted tokens of each request, which the host may learn of a step later.

    Args:
        requests: rows of SGLang's request pool.
        width: the most tokens that a verification accepts.
    """

    def __init__(self, requests: int, width: int) -> None:
        self._shape = requests, width - 1
        self._tokens: torch.Tensor | None = None

    def of(self, requests: torch.Tensor) -> torch.Tensor:
        """The last tokens before the anchors of requests ``[bs]``, in order, int64 ``[bs, width - 1]``."""
        if self._tokens is None:  # most servers never need them
            self._tokens = torch.zeros(self._shape, dtype=torch.int64, device=requests.device)
        return self._tokens[requests]

    def update(self, requests: torch.Tensor, tokens: torch.Tensor, lens: torch.Tensor) -> None:
        """Record the accepted tokens of a verification. The last one is the next anchor.

        Args:
            requests: rows of the request pool, ``[bs]``.
            tokens: accepted tokens, ``[bs, N]``.
            lens: how many of each row, ``[bs]``.

        Raises:
            RuntimeError: `of` was never called.
        """
        if self._tokens is None:
            raise RuntimeError("tokens are noted before any were asked for")
        back = torch.arange(self._shape[1], 0, -1, device=tokens.device)
        places = (lens.unsqueeze(1) - 1 - back).clamp(0, tokens.shape[1] - 1)
        self._tokens[requests] = tokens.gather(1, places.long()).long()
