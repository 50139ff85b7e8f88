"""The draft's probabilities and what they have meant so far: device tensors, never read by the host in a step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tessera.tilespec.calibration import Traffic
from tessera_kernels.ops.accept.accept_chains import Observation
from tessera_kernels.ops.draft.draft_confidence import draft_confidence
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.observe_acceptance import observe_acceptance
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify

NO_DRAFT = -1.0
"""The confidence of a first token that nobody drafted."""
_PLAN_GROWTH = 4


class Scores:
    """One step's confidences ``[bs, s]``, and the acceptance model that they are calibrated with.

    Args:
        requests: rows of SGLang's request pool; no batch is larger.
        depths: the most tokens that are drafted for a request.
        device: where the models run.
        model: the acceptance model to begin with.

    Attributes:
        models: by `tessera.tilespec.calibration.Traffic`; they share the requests' offsets.
        model: the one in force.
        histogram: what all plans add to, int32 ``[2, depths, 64]``: see
            `tessera_kernels.ops.verify.allocate_verify.VerifyPlan`.
        anchors: int32 ``[requests + 1]``: where each request's row begins if its anchor alone is verified.
    """

    def __init__(self, requests: int, depths: int, device: str, model: AcceptanceModel) -> None:
        self._confidence = torch.zeros((requests, depths), dtype=torch.float32, device=device)
        self._index = torch.zeros(requests, dtype=torch.int64, device=device)
        self._drafts: dict[tuple[int, int], torch.Tensor] = {}
        self._depth = 0
        self._plans = _plans(requests, depths, device)
        self.histogram = next(iter(self._plans.values())).histogram
        self.models = (model, model.with_own_table())
        self.model = model
        self.anchors = torch.arange(requests + 1, dtype=torch.int32, device=device)

    def use(self, traffic: Traffic) -> None:
        """From here on batches are of this kind."""
        self.model = self.models[traffic]

    def forget(self, requests: torch.Tensor) -> None:
        """Requests ``[bs]`` begin: what rows of the pool knew of earlier ones is gone."""
        self.model.offsets.index_fill_(0, requests.long(), 0.0)

    def undraft(self, topk_p: torch.Tensor, topk_index: torch.Tensor) -> None:  # noqa: ARG002 - a chain has one
        """Say of first tokens ``[bs, topk]`` that nobody drafted them (in place)."""
        topk_p.fill_(NO_DRAFT)

    def begin(self, probability: torch.Tensor) -> None:
        """A draft begins: take the probability ``[bs, 1]`` of each request's first drafted token."""
        self._confidence[: probability.shape[0], :1].copy_(probability)
        self._depth = 0

    def next(self, logits: torch.Tensor) -> None:
        """Take the logits ``[bs, V]`` of the draft's next token."""
        rows = logits.shape[0]
        draft_confidence(logits, self.place(rows), self._index[:rows])

    def place(self, rows: int) -> torch.Tensor:
        """Where the confidences ``[rows]`` float32 of the draft's next tokens are to be written."""
        self._depth += 1
        return self._confidence[:rows, self._depth]

    def first(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each row of ``[bs, V]`` logits the greatest probability ``[bs, 1]`` float32, and its token int64."""
        rows = logits.shape[0]
        probability = torch.empty((rows, 1), dtype=torch.float32, device=logits.device)
        token = torch.empty((rows, 1), dtype=torch.int64, device=logits.device)
        draft_confidence(logits, probability[:, 0], token[:, 0])
        return probability, token

    def allocate(self, bs: int, steps: int, requests: torch.Tensor, tokens: int, slots: int = 0) -> VerifyPlan:
        """Whose drafted tokens to verify: `tessera_kernels.ops.verify.allocate_verify.allocate_verify`.

        The plan is overwritten by the next call, on the current stream. It has room for ``slots`` requests
        at least.
        """
        plan = self._plan(max(bs, slots))
        allocate_verify(self._drafted(bs, steps), requests, self.model, tokens, plan)
        return plan

    def _drafted(self, bs: int, steps: int) -> torch.Tensor:
        """The step's confidences ``[bs, steps]``: a view that is kept, for to make one takes a third of a launch."""
        drafts = self._drafts.get((bs, steps))
        if drafts is None:
            drafts = self._drafts[bs, steps] = self._confidence[:bs, :steps]
        return drafts

    def _plan(self, least: int) -> VerifyPlan:
        return next(plan for slots, plan in self._plans.items() if slots >= least)

    def observation(self, bs: int, steps: int, requests: torch.Tensor) -> Observation:
        """What `tessera_kernels.ops.accept.accept_chains` is to learn where it accepts chains, instead of `observe`."""
        return Observation(self._drafted(bs, steps), requests, self.model)

    def observe(self, bs: int, steps: int, requests: torch.Tensor, plan: VerifyPlan, accept_lens: torch.Tensor) -> None:
        """Learn from the outcome of a step: `tessera_kernels.ops.learning.observe_acceptance.observe_acceptance`."""
        observe_acceptance(self._drafted(bs, steps), requests, plan.verify_lens, accept_lens, self.model)

    def reset(self) -> None:
        """Nothing has been drafted, verified or learnt so far."""
        self._confidence.zero_()
        self.model.offsets.zero_()
        self.histogram.zero_()
        for model in self.models:
            model.counts.zero_()

    def refit(self, traffic: Traffic, logits: npt.NDArray[np.float32]) -> None:
        """Take another table ``[S, BINS]``, from the current stream's next step on."""
        table = torch.from_numpy(logits)
        target = self.models[traffic].logits
        target.copy_(table.pin_memory() if target.is_cuda else table, non_blocking=True)


def _plans(requests: int, depths: int, device: str) -> dict[int, VerifyPlan]:
    """Buffers by their number of slots, with one histogram.

    Few sizes, for each is a compilation of the kernels; small ones are faster.
    """
    sizes = [_PLAN_GROWTH]
    while sizes[-1] < requests:
        sizes.append(sizes[-1] * _PLAN_GROWTH)
    plans = {slots: VerifyPlan.create(slots, depths, depths, device) for slots in sizes}
    shared = plans[_PLAN_GROWTH].histogram
    return {slots: plan._replace(histogram=shared) for slots, plan in plans.items()}
