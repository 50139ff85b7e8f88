"""Draft models with a part of the target's vocabulary: EAGLE-3 heads, and ``--speculative-token-map``.

Proposals have one probability for each token of the draft model. SGLang's acceptance needs one for each token of the
target, and refuses such models; ours looks up the draft's ids.
"""

from typing import Any

import torch

from tessera_patches.core.changes import Mixin
from tessera_patches.engine.model import vocabulary, with_vocabulary
from tessera_patches.engine.workers import target_runner


def draft_vocab_size(drafts: Any) -> int:
    """The size of a draft worker's vocabulary."""
    known = drafts.hot_token_id
    return int(vocabulary(target_runner(drafts)) if known is None else known.shape[0])


def draft_ids(drafts: Any) -> torch.Tensor | None:
    """The draft's id of each token of the target, int32 ``[V]``, or -1. None if both vocabularies are the same."""
    known = drafts.hot_token_id
    if known is None:
        return None
    options: dict[str, Any] = {"dtype": torch.int32, "device": known.device}
    ids = torch.full((vocabulary(target_runner(drafts)),), -1, **options)
    ids[known] = torch.arange(len(known), **options)
    return ids


class ReducedVocabulary(Mixin):
    """Rejection sampling of draft models with a smaller vocabulary. Other draft models are not affected."""

    hot_token_id: torch.Tensor | None
    _hot_token_id: torch.Tensor | None

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Hides the map from the check with which SGLang refuses such models."""
        super().alloc_memory_pool(**kwargs)
        self.hot_token_id = self._hot_token_id

    def init_lm_head(self) -> None:
        """Called in `alloc_memory_pool`, after the map was loaded and before the check."""
        super().init_lm_head()
        self._hot_token_id, self.hot_token_id = self.hot_token_id, None

    def _capture_cuda_graphs(self) -> None:
        """Sizes the graphs' buffers of proposals by the draft's vocabulary, where SGLang takes the target's."""
        with with_vocabulary(self.draft_runner, draft_vocab_size(self)):
            super()._capture_cuda_graphs()
