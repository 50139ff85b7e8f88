"""The draft's confidences and the acceptance model: device tensors that the host never reads within a step."""

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
"""The confidence of a placeholder for a first token, after a step without a draft."""
_PLAN_GROWTH = 4


class Scores:
    """The confidences of a step's draft tokens ``[bs, s]``, and the acceptance model that calibrates them.

    Args:
        requests: rows of SGLang's request pool, and the greatest batch size.
        depths: the greatest number of draft tokens of a request.
        device: the device of the models.
        model: the initial acceptance model.

    Attributes:
        models: the acceptance models by `tessera.tilespec.calibration.Traffic`; they share the requests' offsets.
        model: the model of the current traffic.
        histogram: int32 ``[2, depths, 64]``, which all plans add to:
            `tessera_kernels.ops.verify.allocate_verify.VerifyPlan`.
        anchors: int32 ``[requests + 1]``, the ``qo_indptr`` of a verification of anchors alone.
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
        """Switch to the model of this kind of traffic."""
        self.model = self.models[traffic]

    def reset_requests(self, requests: torch.Tensor) -> None:
        """Reset the offsets of new requests, rows ``[bs]`` of the request pool."""
        self.model.offsets.index_fill_(0, requests.long(), 0.0)

    def mark_undrafted(self, topk_p: torch.Tensor, topk_index: torch.Tensor) -> None:  # noqa: ARG002 - a chain has one
        """Mark first tokens ``[bs, topk]`` as placeholders, which were not drafted (in place)."""
        topk_p.fill_(NO_DRAFT)

    def begin(self, probability: torch.Tensor) -> None:
        """Begin a draft with the confidences ``[bs, 1]`` of the first draft tokens."""
        self._confidence[: probability.shape[0], :1].copy_(probability)
        self._depth = 0

    def add_logits(self, logits: torch.Tensor) -> None:
        """Add the confidences of the next draft tokens, from their logits ``[bs, V]``."""
        rows = logits.shape[0]
        draft_confidence(logits, self.next_column(rows), self._index[:rows])

    def next_column(self, rows: int) -> torch.Tensor:
        """The column ``[rows]`` float32 to write the confidences of the next draft tokens to."""
        self._depth += 1
        return self._confidence[:rows, self._depth]

    def argmax_with_confidence(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The greatest probability of each row of logits ``[bs, V]``, float32 ``[bs, 1]``, and its token, int64."""
        rows = logits.shape[0]
        probability = torch.empty((rows, 1), dtype=torch.float32, device=logits.device)
        token = torch.empty((rows, 1), dtype=torch.int64, device=logits.device)
        draft_confidence(logits, probability[:, 0], token[:, 0])
        return probability, token

    def allocate(self, bs: int, steps: int, requests: torch.Tensor, tokens: int) -> VerifyPlan:
        """Choose the draft tokens to verify: `tessera_kernels.ops.verify.allocate_verify.allocate_verify`.

        The next call overwrites the plan, on the current stream.

        Args:
            bs: requests of the batch.
            steps: draft tokens of each request.
            requests: their rows of the request pool, ``[bs]``.
            tokens: tokens to verify in all, anchors included.
        """
        plan = self._plan(bs)
        allocate_verify(self._drafted(bs, steps), requests, self.model, tokens, plan)
        return plan

    def _drafted(self, bs: int, steps: int) -> torch.Tensor:
        """The step's confidences ``[bs, steps]``. Views are cached: creating one takes a third of a launch."""
        drafts = self._drafts.get((bs, steps))
        if drafts is None:
            drafts = self._drafts[bs, steps] = self._confidence[:bs, :steps]
        return drafts

    def _plan(self, bs: int) -> VerifyPlan:
        return next(plan for slots, plan in self._plans.items() if slots >= bs)

    def observation(self, bs: int, steps: int, requests: torch.Tensor) -> Observation:
        """The arguments with which `tessera_kernels.ops.accept.accept_chains` counts outcomes, instead of `observe`."""
        return Observation(self._drafted(bs, steps), requests, self.model)

    def observe(self, bs: int, steps: int, requests: torch.Tensor, plan: VerifyPlan, accept_lens: torch.Tensor) -> None:
        """Count the outcome of a step: `tessera_kernels.ops.learning.observe_acceptance.observe_acceptance`."""
        observe_acceptance(self._drafted(bs, steps), requests, plan.verify_lens, accept_lens, self.model)

    def reset(self) -> None:
        """Reset confidences, offsets and counts, but no tables."""
        self._confidence.zero_()
        self.model.offsets.zero_()
        self.histogram.zero_()
        for model in self.models:
            model.counts.zero_()

    def refit(self, traffic: Traffic, logits: npt.NDArray[np.float32]) -> None:
        """Replace the table of a kind of traffic, ``[S, BINS]``, on the current stream."""
        table = torch.from_numpy(logits)
        target = self.models[traffic].logits
        target.copy_(table.pin_memory() if target.is_cuda else table, non_blocking=True)


def _plans(requests: int, depths: int, device: str) -> dict[int, VerifyPlan]:
    """Plans by their number of slots, with one histogram. Kernels are compiled for each size, so there are few."""
    sizes = [_PLAN_GROWTH]
    while sizes[-1] < requests:
        sizes.append(sizes[-1] * _PLAN_GROWTH)
    plans = {slots: VerifyPlan.create(slots, depths, depths, device) for slots in sizes}
    shared = plans[_PLAN_GROWTH].histogram
    return {slots: plan._replace(histogram=shared) for slots, plan in plans.items()}
