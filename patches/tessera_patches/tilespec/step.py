"""What one step verifies: the one object that its draft, its verification and its acceptance share."""

from dataclasses import dataclass
from typing import Any, Self

import torch

from tessera.tilespec.penalties import RecentTokens
from tessera_kernels.ops.accept.accept_chains import Observation
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_kernels.ops.verify.pack_verify import VerifyRows

_NAME = "tessera_step"


@dataclass(slots=True)
class Step:
    """A verification of chains or trees. It travels on SGLang's ``EagleVerifyInput``.

    Attributes:
        qo_indptr: the begin of each request's verified rows, int32 ``[bs + 1]`` or longer.
        plan: the number of verified tokens of each request, on the device; None where nothing was drafted.
        tokens: their sum, the only number that the host knows.
        rows: rows of the target's forward, if they are packed: the size of its graph, or ``tokens``. None if it has a
            row for each drafted token, as SGLang's has.
        padded: the rows of all drafted tokens ``[bs * N]``, while others are packed.
        recent: the last accepted tokens of each request, for penalties; None for trees.
        observation: of chains, the arguments for counting outcomes; None once they were counted.
        draft_ids: of sampled chains, the draft's id of each token of the target, or None if both are the same.
        candidates: of trees, the parent candidate of each group of candidates, int64 ``[bs, topk * (steps - 1) + 1]``,
            and the candidates that are nodes, the best path first, int64 ``[bs, N - 1]``.
        mask_indptr: of pruned trees, the begin of each request's mask, int64 ``[bs]``.
        accepted: of trees, the accepted nodes, ``request * N + node``, padded with -1, int32 ``[bs, steps + 1]``; set
            by the acceptance.
    """

    qo_indptr: torch.Tensor
    plan: VerifyPlan | None = None
    tokens: int = 0
    rows: int | None = None
    padded: VerifyRows | None = None
    recent: RecentTokens | None = None
    observation: Observation | None = None
    draft_ids: torch.Tensor | None = None
    candidates: tuple[torch.Tensor, torch.Tensor] | None = None
    mask_indptr: torch.Tensor | None = None
    accepted: torch.Tensor | None = None

    def attach(self, verify_input: Any) -> None:
        """Attach this to a verification input."""
        setattr(verify_input, _NAME, self)

    @classmethod
    def of(cls, verify_input: Any) -> Self | None:
        """What is attached; None for an idle batch, and while a graph is captured."""
        found: Self | None = getattr(verify_input, _NAME, None)
        return found
