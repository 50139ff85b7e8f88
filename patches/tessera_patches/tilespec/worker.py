"""SGLang's EAGLE and STANDALONE workers, with numbers of drafted and of verified tokens that change in each step."""

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from tessera.tilespec.calibration import Calibration, Traffic, bin_edges
from tessera.tilespec.candidates import DraftShape
from tessera.tilespec.penalties import RecentTokens
from tessera.tilespec.policy import Choice
from tessera.tilespec.scores import Scores
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_patches.core import calls
from tessera_patches.core.apply import foreign_class_error
from tessera_patches.core.changes import Mixin, TemporaryFields, filter_log, truncate
from tessera_patches.engine.batches import all_greedy, batch_size, committed_tokens, rows_of, speculative_input
from tessera_patches.engine.cache import slot_map
from tessera_patches.engine.options import overrides_log, samples_drafts
from tessera_patches.engine.workers import target_runner
from tessera_patches.tilespec.draft.drafts import AdaptiveDraftWorker
from tessera_patches.tilespec.draft.proposals import one_hot_probs
from tessera_patches.tilespec.draft.vocabulary import draft_ids, draft_vocab_size
from tessera_patches.tilespec.extend.last_rows import compute_last_rows_only
from tessera_patches.tilespec.start.failures import exit_with_traceback
from tessera_patches.tilespec.step import Step
from tessera_patches.tilespec.verify import graphs as tilespec_graphs
from tessera_patches.tilespec.verify.logits import is_draft_mode, keep_logits_in_16_bits

_SGLANG = "sglang.srt.speculative.eagle_worker_v2"
_HINT = (
    ". If memory ran out: lower --mem-fraction-static, capture fewer sizes (--cuda-graph-max-bs-decode), or add "
    "--tile-spec-no-rejection-sampling"
)
_SWITCH = "Switch adaptive runtime state"
"""Part of the line that SGLang logs when the number of steps changes, which is often the case here."""


class RuntimeStates:
    """SGLang's runtime states (attention backends and graphs), one for each number of draft tokens.

    It replaces SGLang's ``AdaptiveController``, for which workers build the states, but makes no decisions.

    Args:
        worker: SGLang's worker.
        shape: the greatest draft of a request.

    Attributes:
        by_steps: the states by number of draft tokens.
        steps: the numbers of draft tokens to choose from.
    """

    def __init__(self, worker: Any, shape: DraftShape) -> None:
        self._worker = worker
        self.by_steps: dict[int, Any] = {}
        self.shape = shape
        self.steps = shape.drafted

    def register(self, state: Any) -> None:
        """Add the state of one draft length."""
        self.by_steps[state.speculative_num_draft_tokens - 1] = state

    def init_states(self, cuda_graph_bs: list[int] | None) -> None:
        """Build the missing states."""
        for steps in self.steps:
            if steps not in self.by_steps:
                widths = self.shape.state(steps)
                self.register(self._worker.build_adaptive_runtime_state(*widths, cuda_graph_bs=cuda_graph_bs))

    def activate(self, steps: int) -> None:
        """Switch the worker to a state."""
        if steps + 1 != self._worker.speculative_num_draft_tokens:
            log = overrides_log()
            before = len(log)
            self._worker.apply_runtime_state(self.by_steps[steps])
            truncate(RuntimeStates, log, before)  # SGLang would keep a line for each switch


class AdaptiveWorker(Mixin):
    """A mixin for SGLang's workers, which drafts chains: `tessera_patches.tilespec.workers`.

    Confidences, the acceptance table and counts stay on the device (`Scores`). The host chooses two numbers for each
    step: the draft tokens of each request, and the verified tokens of the batch. The device chooses which tokens.

    Attributes:
        scores_class: the class of the device tensors.
        scores: these, once memory is allocated.
        runtime: SGLang's states for each number of draft tokens.
        graphs: those of ragged verifications, once they are captured; None if there are none.
    """

    scores_class: type[Scores] = Scores
    scores: Scores
    graphs: tilespec_graphs.RaggedGraphs | None
    _decider: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        calls.count(type(self))
        self.adaptive_controller = None
        shape = DraftShape(self.speculative_num_steps, self.topk, self.speculative_num_draft_tokens)
        self.runtime = RuntimeStates(self, shape)
        self._choice: Choice | None = None
        self._kv_tokens = 0
        self._traffic = Traffic.GREEDY

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Also creates the device tensors that the draft worker's graphs write."""
        drafts = self._draft_worker
        if not isinstance(drafts, AdaptiveDraftWorker):
            raise foreign_class_error(drafts, "our draft worker")
        super().alloc_memory_pool(**kwargs)
        requests, depths = slot_map(self).shape[0], max(self.runtime.steps)
        table = torch.from_numpy(self.new_calibration().logits())
        model = AcceptanceModel.create(torch.from_numpy(bin_edges()), table, requests, self.device)
        self.scores = self.scores_class(requests, depths, self.device, model)
        drafts.write_scores_to(self.scores)
        self._recent = RecentTokens(requests, depths + 1)
        compute_last_rows_only(drafts.draft_runner.model, drafts.on_logits)
        if not self.runtime.shape.trees:  # SGLang accepts some of them
            keep_logits_in_16_bits(target_runner(self).model, ForwardMode.is_target_verify)
            keep_logits_in_16_bits(drafts.draft_runner.model, is_draft_mode)
        self._draft_ids = draft_ids(drafts) if samples_drafts() else None

    def init_cuda_graphs(self) -> None:
        """Also captures the graphs of the other numbers of draft tokens; SGLang builds them for a controller."""
        temporarily = TemporaryFields(AdaptiveWorker, self, adaptive_controller=self.runtime)
        with temporarily, exit_with_traceback("capturing graphs", _HINT):
            super().init_cuda_graphs()
            self.graphs = tilespec_graphs.capture(target_runner(self), self.runtime.shape)
        filter_log(AdaptiveWorker, _SGLANG, _SWITCH, "logger")

    def decide_by(self, decider: Any) -> None:
        """Give the worker a decider: `tessera.tilespec.decider.Decider`, or what stands in for it."""
        self._decider = decider

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """A step of the scheduler: a prefill, or draft, verification and draft-extend."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self.scores.reset_requests(rows_of(batch))
            self._decider.on_prefill(_new_requests(batch))
        else:  # lengths of the last step, as the host knows no later ones
            self._kv_tokens = committed_tokens(batch)
            self._traffic = Traffic.GREEDY if all_greedy(batch) else Traffic.SAMPLED
        return super().forward_batch_generation(batch, *args, **kwargs)

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Choose for a step. SGLang calls this before each draft."""
        self._choice = self._decider.choose(batch_size, self._kv_tokens, self._traffic)
        self.runtime.activate(self._choice.steps)

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify the chosen tokens, and count the outcome."""
        choice, verify_input = self._choice, speculative_input(batch)
        if batch.forward_mode.is_idle() or choice is None:
            return super().verify(batch, *args, **kwargs)
        if choice.steps == 0:
            Step(self.scores.anchors, recent=self._recent).attach(verify_input)
            return super().verify(batch, *args, **kwargs)
        bs, steps, requests = batch_size(batch), choice.steps, rows_of(batch)
        graphs = None if choice.tier is None else self.graphs
        plan = self.scores.allocate(bs, steps, requests, choice.tokens)
        step = Step(plan.qo_indptr, plan, choice.tokens, self._packed_rows(choice, verify_input))
        self._describe_drafts(step, bs, steps, requests)
        step.attach(verify_input)
        with tilespec_graphs.use_graphs(graphs, target_runner(self)):
            result = super().verify(batch, *args, **kwargs)
        self._learn(step, plan, steps, requests, result.accept_lens)
        self._decider.on_verify(steps)
        # For meta_info. A copy, as SGLang copies it to the host on another stream, when the plan may be overwritten.
        result.cap_lens = plan.verify_lens[:bs].clone()
        return result

    def _packed_rows(self, choice: Choice, verify_input: Any) -> int | None:
        """Rows of the forward: of a ragged graph, or of a part of the drafted tokens; None where all are verified."""
        if self.graphs is not None and choice.tier is not None:
            return choice.tier
        if choice.tokens == verify_input.draft_token.numel():
            return None
        tilespec_graphs.check_eager(target_runner(self), self.runtime.shape)
        return choice.tokens

    def _describe_drafts(self, step: Step, bs: int, steps: int, requests: torch.Tensor) -> None:
        """Tell the step what its drafts are."""
        step.recent, step.draft_ids = self._recent, self._draft_ids
        step.observation = self.scores.observation(bs, steps, requests)

    def _learn(self, step: Step, plan: VerifyPlan, steps: int, requests: torch.Tensor, accept_lens: Any) -> None:
        """Count the outcome, unless the acceptance did."""
        if step.observation is not None:
            self.scores.observe(len(requests), steps, requests, plan, accept_lens)

    def _stub_skipped_draft_extend(self, batch: Any, batch_output: Any) -> None:
        """After a plain step, mark the placeholders of first draft tokens, so that their rejection does not count."""
        super()._stub_skipped_draft_extend(batch, batch_output)
        drafts = batch_output.next_draft_input
        self.scores.mark_undrafted(drafts.topk_p, drafts.topk_index)
        if samples_drafts():
            drafts.draft_probs = one_hot_probs(drafts.topk_index, draft_vocab_size(self._draft_worker))

    def new_calibration(self) -> Calibration:
        """A calibration without counts."""
        return Calibration(max(self.runtime.steps), trees=self.runtime.shape.trees)


def _new_requests(batch: Any) -> int:
    """The requests of a prefill that decode afterwards: without a chunked one, and those that end with their prompt."""
    wanted = (request.sampling_params.max_new_tokens for request in batch.reqs if request is not batch.chunked_req)
    return sum(tokens > 1 for tokens in wanted)
