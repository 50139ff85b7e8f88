"""One worker and one draft worker for each of SGLang's algorithms, with chains or trees: SGLang's, extended by ours."""

from typing import Any

from sglang.srt.speculative import eagle_worker_v2, standalone_worker_v2
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneDraftWorker, StandaloneWorkerV2

from tessera_patches.core.changes import Mixin, TemporaryFields
from tessera_patches.tilespec.draft.drafts import ChainDraftWorker, TreeDraftWorker
from tessera_patches.tilespec.tree_worker import AdaptiveTreeWorker
from tessera_patches.tilespec.worker import AdaptiveWorker


class EagleChainDrafts(ChainDraftWorker, EagleDraftWorker):
    """Chains of EAGLE and EAGLE3."""


class EagleTreeDrafts(TreeDraftWorker, EagleDraftWorker):
    """Trees of EAGLE and EAGLE3."""


class StandaloneChainDrafts(ChainDraftWorker, StandaloneDraftWorker):
    """Chains of a draft model by itself."""


class StandaloneTreeDrafts(TreeDraftWorker, StandaloneDraftWorker):
    """Trees of a draft model by itself."""


class EagleDrafts(Mixin):
    """A worker of EAGLE or EAGLE3 whose draft worker, which SGLang's constructor creates by its name, is ours."""

    draft_class: type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with TemporaryFields(EagleDrafts, eagle_worker_v2, EagleDraftWorker=self.draft_class):
            super().__init__(*args, **kwargs)


class StandaloneDrafts(Mixin):
    """A worker of STANDALONE whose draft worker is ours."""

    draft_class: type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with TemporaryFields(StandaloneDrafts, standalone_worker_v2, StandaloneDraftWorker=self.draft_class):
            super().__init__(*args, **kwargs)


class EagleChainWorker(AdaptiveWorker, EagleDrafts, EAGLEWorkerV2):
    """Chains of EAGLE and EAGLE3."""

    draft_class = EagleChainDrafts


class EagleTreeWorker(AdaptiveTreeWorker, EagleDrafts, EAGLEWorkerV2):
    """Trees of EAGLE and EAGLE3."""

    draft_class = EagleTreeDrafts


class StandaloneChainWorker(AdaptiveWorker, StandaloneDrafts, StandaloneWorkerV2):
    """Chains of a draft model by itself."""

    draft_class = StandaloneChainDrafts


class StandaloneTreeWorker(AdaptiveTreeWorker, StandaloneDrafts, StandaloneWorkerV2):
    """Trees of a draft model by itself."""

    draft_class = StandaloneTreeDrafts


_WORKERS: dict[type, tuple[type, type]] = {
    EAGLEWorkerV2: (EagleChainWorker, EagleTreeWorker),
    StandaloneWorkerV2: (StandaloneChainWorker, StandaloneTreeWorker),
}


def worker_class(stock: type, *, trees: bool) -> type:
    """TileSpec's worker in place of one of SGLang's; other algorithms are refused at start."""
    return _WORKERS[stock][trees]
