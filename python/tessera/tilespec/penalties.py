"""What requests take off the logits of tokens that they have generated, for each token of a draft.

As SGLang has it without speculation, but for what it counts: every token generated so far, and no other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import pad


class Penalties(NamedTuple):
    """Of a batch, on its device. Nothing is changed in place: forwards may still read it."""

    counts: torch.Tensor
    """float32 ``[bs, V]``: how often each token was generated, of those that the host knows."""
    known: torch.Tensor
    """int64 ``[bs]``: how many tokens the host knows."""
    prompts: torch.Tensor
    """int64 ``[bs]``: tokens of each prompt."""
    frequency: torch.Tensor
    """float32 ``[bs, 1]``: taken off for each time that a token was generated."""
    presence: torch.Tensor
    """float32 ``[bs, 1]``: taken off where a token was generated at all."""
    repetition: torch.Tensor
    """float32 ``[bs, 1]``: divides its logit if positive, else multiplies it."""
    least: torch.Tensor
    """int64 ``[bs]``: how many tokens there shall be (``min_new_tokens``)."""
    stops: torch.Tensor
    """int64 ``[bs, S]``: tokens that would end a request."""
    barred: torch.Tensor
    """float32 ``[bs, S]``: added to their logits until there are as many; 0 where ``stops`` is padding."""

    def counted(self, tokens: torch.Tensor, lens: torch.Tensor) -> Penalties:
        """With the first ``lens`` ``[bs]`` of each row of ``tokens`` ``[bs, n]``, which the host knows now."""
        new = torch.arange(tokens.shape[1], device=tokens.device) < lens.unsqueeze(1)
        return self._replace(counts=self.counts.scatter_add(1, tokens, new.float()), known=self.known + lens)

    def kept(self, places: torch.Tensor) -> Penalties:
        """Of the requests at ``places``."""
        return Penalties._make(part[places] for part in self)

    def joined(self, other: Penalties) -> Penalties:
        """Of both batches."""
        width = max(self.stops.shape[1], other.stops.shape[1])
        both = (self._widened(width), other._widened(width))
        return Penalties._make(map(torch.cat, zip(*both, strict=True)))

    def _widened(self, width: int) -> Penalties:
        stops, barred = (pad(part, (0, width - part.shape[1])) for part in (self.stops, self.barred))
        return self._replace(stops=stops, barred=barred)

    def vary(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """Requests, bool ``[bs]``, whose penalties depend on the drafts before a token; arguments as below."""
        counting = (self.frequency != 0) | (self.presence != 0) | (self.repetition != 1)
        return counting.squeeze(1) | (self._generated(seq_lens) < self.least)

    def penalize(self, logits: torch.Tensor) -> None:
        """Change logits ``[bs, V]`` of the next token, where the host knows all tokens before it (in place)."""
        requests = torch.arange(len(logits), device=logits.device)
        none = requests.unsqueeze(1)[:, :0]
        self._penalize(logits, requests, none, none.bool(), self.known)

    def penalize_drafts(
        self,
        logits: torch.Tensor,
        requests: torch.Tensor,
        depths: torch.Tensor,
        seq_lens: torch.Tensor,
        tokens: torch.Tensor,
        recent: torch.Tensor | None,
    ) -> None:
        """Change logits of verified tokens (in place): each by all tokens before, and itself.

        Args:
            logits: ``[rows, V]``.
            requests: whose each row is, int64 ``[rows]``.
            depths: of each row in its draft, int64 ``[rows]``; 0 is the anchor.
            seq_lens: tokens before the anchor, int64 ``[bs]``.
            tokens: anchors and drafts, int64 ``[bs, N]``.
            recent: the tokens before the anchor, the last ones last, int64 ``[bs, R]``: all that the host does not
                know; None where the anchor alone may be such a token.
        """
        sequence, first = (tokens, 0) if recent is None else (torch.cat([recent, tokens], 1), recent.shape[1])
        generated = self._generated(seq_lens)
        unknown = (generated - self.known)[requests]
        column = torch.arange(sequence.shape[1], device=logits.device)
        after = column > (first - unknown).unsqueeze(1)
        seen = after & (column <= (first + depths).unsqueeze(1))
        self._penalize(logits, requests, sequence[requests], seen, generated[requests] + depths)

    def _generated(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """How many tokens each request has, its anchor included."""
        return seq_lens + 1 - self.prompts

    def _penalize(
        self,
        logits: torch.Tensor,
        requests: torch.Tensor,
        more: torch.Tensor,
        seen: torch.Tensor,
        generated: torch.Tensor,
    ) -> None:
        """By what was counted, and by tokens ``more`` ``[rows, E]`` where they are ``seen``."""
        values = logits.float()
        counts = self.counts[requests].scatter_add_(1, more, seen.float())
        values.addcmul_(counts, self.frequency[requests], value=-1)
        present = counts > 0
        values.sub_(present * self.presence[requests])
        early = (generated < self.least[requests]).unsqueeze(1)
        values.scatter_add_(1, self.stops[requests], self.barred[requests].where(early, 0.0))
        factor = self.repetition[requests].where(present, 1.0)
        values.mul_(factor.where(values < 0, 1 / factor))
        if values is not logits:
            logits.copy_(values)


class RecentTokens:
    """What the last verification of each request accepted: the host may know of it a step later.

    Args:
        requests: rows of SGLang's request pool.
        width: tokens that a verification accepts at most.
    """

    def __init__(self, requests: int, width: int) -> None:
        self._shape = requests, width - 1
        self._tokens: torch.Tensor | None = None

    def of(self, requests: torch.Tensor) -> torch.Tensor:
        """Tokens ``[bs, width - 1]`` before the anchors of requests ``[bs]``, the last ones last."""
        if self._tokens is None:  # most servers are never asked for penalties
            self._tokens = torch.zeros(self._shape, dtype=torch.int64, device=requests.device)
        return self._tokens[requests]

    def note(self, requests: torch.Tensor, tokens: torch.Tensor, lens: torch.Tensor) -> None:
        """The first ``lens`` ``[bs]`` of ``tokens`` ``[bs, N]`` were accepted; the last of them is the next anchor."""
        if self._tokens is None:
            raise RuntimeError("tokens are noted before any were asked for")
        back = torch.arange(self._shape[1], 0, -1, device=tokens.device)
        places = (lens.unsqueeze(1) - 1 - back).clamp(0, tokens.shape[1] - 1)
        self._tokens[requests] = tokens.gather(1, places.long()).long()
