"""Draft models that know some of the target's tokens, by numbers of their own: those of EAGLE-3, and of token maps.

What drafts are sampled from has one probability for each token that the draft model knows, here as in all of SGLang
before its acceptance, which wants them of all tokens and refuses such models. Ours looks each token up.
"""

from __future__ import annotations

from typing import Any

import torch

from tessera_patches.core.changes import Mixin, TemporaryFields


def vocabulary(drafts: Any) -> int:
    """Tokens that a draft worker's model knows: fewer than the target, where it has a map."""
    known = drafts.hot_token_id
    return int(drafts.target_worker.model_config.vocab_size if known is None else known.shape[0])


def draft_ids(drafts: Any) -> torch.Tensor | None:
    """The id of each of the target's tokens in the draft model's vocabulary, int32 ``[V]``; -1 for those that it lacks.

    None where both vocabularies are the same.
    """
    known = drafts.hot_token_id
    if known is None:
        return None
    options: dict[str, Any] = {"dtype": torch.int32, "device": known.device}
    ids = torch.full((drafts.target_worker.model_config.vocab_size,), -1, **options)
    ids[known] = torch.arange(len(known), **options)
    return ids


class KnowingSome(Mixin):
    """A draft worker that may be sampled from whatever it knows. All others are as they were."""

    hot_token_id: torch.Tensor | None
    _known: torch.Tensor | None

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """SGLang refuses to sample from a draft model that knows fewer tokens: its acceptance wants all."""
        super().alloc_memory_pool(**kwargs)
        self.hot_token_id = self._known

    def init_lm_head(self) -> None:
        """Reads what is known, before `alloc_memory_pool` looks whether it is all."""
        super().init_lm_head()
        self._known, self.hot_token_id = self.hot_token_id, None

    def _capture_cuda_graphs(self) -> None:
        """SGLang sizes the graphs' buffers of probabilities by the target's vocabulary."""
        with TemporaryFields(self.draft_runner.model_config, vocab_size=vocabulary(self)):
            super()._capture_cuda_graphs()
