"""SGLang's EAGLE and STANDALONE workers, with numbers of drafted and of verified tokens that change in each step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from tessera import config
from tessera.errors import StartRefused
from tessera.tilespec.calibration import Calibration, Traffic, bin_edges
from tessera.tilespec.calibration_saver import CalibrationSaver
from tessera.tilespec.candidates import DraftShape
from tessera.tilespec.decider import Decider
from tessera.tilespec.follower import Follower
from tessera.tilespec.penalties import RecentTokens
from tessera.tilespec.policy import Choice
from tessera.tilespec.refusals import why_no_rejection_sampling
from tessera.tilespec.scores import Scores
from tessera.tilespec.tally import Tally
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_patches.apply import start_error
from tessera_patches.core.changes import Mixin, TemporaryFields, extend_class, filter_log, truncate
from tessera_patches.engine.batches import committed_tokens, rows_of, speculative_input
from tessera_patches.engine.cache import slot_map
from tessera_patches.engine.options import options, overrides_log
from tessera_patches.tilespec.attention.flash import fuse_verify
from tessera_patches.tilespec.draft.drafts import score_chains
from tessera_patches.tilespec.draft.proposals import one_hot_probs, samples_drafts
from tessera_patches.tilespec.draft.vocabulary import draft_ids, draft_vocab_size
from tessera_patches.tilespec.extend.last_rows import compute_last_rows_only
from tessera_patches.tilespec.start import late_compiles
from tessera_patches.tilespec.start import profile as tilespec_profile
from tessera_patches.tilespec.start.launches import cache_sglang_launches
from tessera_patches.tilespec.start.warm_up import on_forward_stream
from tessera_patches.tilespec.verify import graphs as tilespec_graphs
from tessera_patches.tilespec.verify.accept import ChainVerify
from tessera_patches.tilespec.verify.layout import PlanViews
from tessera_patches.tilespec.verify.logits import is_draft_mode, keep_logits_in_16_bits
from tessera_patches.tilespec.verify.pack import PartialVerify
from tessera_patches.tilespec.verify.single_load import load_batches_once

logger = logging.getLogger(__name__)

_SGLANG = "sglang.srt.speculative.eagle_worker_v2"
_HINT = (
    ". Out of memory: lower --mem-fraction-static, capture fewer sizes (--cuda-graph-max-bs-decode), or add "
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
        """Add a state."""
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
            truncate(log, before)  # SGLang would keep a line for each switch


class AdaptiveWorker(Mixin):
    """The mixin that `adaptive_class` adds to ``EAGLEWorkerV2`` or ``StandaloneWorkerV2``.

    Confidences, the acceptance table and counts stay on the device (`Scores`). The host chooses two numbers for each
    step: the draft tokens of each request, and the verified tokens of the batch. The device chooses which tokens.

    Attributes:
        scores_class: the class of the device tensors.
        score_drafts: extends SGLang's draft worker, which writes them.
    """

    scores_class: type[Scores] = Scores
    score_drafts = staticmethod(score_chains)
    _decider: Any
    _graphs: tilespec_graphs.RaggedGraphs | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adaptive_controller = None
        shape = DraftShape(self.speculative_num_steps, self.topk, self.speculative_num_draft_tokens)
        self._states = RuntimeStates(self, shape)
        self._choice: Choice | None = None
        self._kv_tokens = 0
        self._traffic = Traffic.GREEDY
        self._views = PlanViews()

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Also extends the draft worker, and creates the device tensors that its graphs write."""
        # SGLang's worker creates the draft worker itself, so its class is changed afterwards.
        drafts = self._draft_worker
        self.score_drafts(drafts)
        super().alloc_memory_pool(**kwargs)
        requests, depths = slot_map(self).shape[0], max(self._states.steps)
        table = torch.from_numpy(self._new_calibration().logits())
        model = AcceptanceModel.create(torch.from_numpy(bin_edges()), table, requests, self.device)
        self._scores = self.scores_class(requests, depths, self.device, model)
        drafts.write_scores_to(self._scores)
        self._recent = RecentTokens(requests, depths + 1)
        cache_sglang_launches(self.device)
        compute_last_rows_only(drafts.draft_runner.model, drafts.on_logits)
        if not self._states.shape.trees:  # SGLang accepts some of them
            keep_logits_in_16_bits(self.target_worker.model_runner.model, ForwardMode.is_target_verify)
            keep_logits_in_16_bits(drafts.draft_runner.model, is_draft_mode)
        self._draft_ids = draft_ids(drafts) if samples_drafts() else None

    def init_cuda_graphs(self) -> None:
        """Also captures the graphs of the other numbers of draft tokens; SGLang builds them for a controller."""
        with TemporaryFields(self, adaptive_controller=self._states):
            with _exit_with_traceback("capturing graphs", _HINT):
                super().init_cuda_graphs()
                self._graphs = tilespec_graphs.capture(self.target_worker.model_runner, self._states.shape)
            for state in self._states.by_steps.values():
                fuse_verify(state.target_attn_backend)
                load_batches_once(state.target_graph_runner)
        filter_log(_SGLANG, _SWITCH)

    def profile(self) -> None:
        """Measure or load the cost profile. To be called when graphs exist and nothing is served yet."""
        if get_tp_group().rank_in_group == 0:
            _log_draft_sampling(options(self))
        with _exit_with_traceback("measuring steps"), on_forward_stream(self):
            unknown = self._new_calibration(), self._new_calibration()
            known = tilespec_profile.profile(self, self._states.by_steps, self._graphs, unknown)
        for traffic, calibration in zip(Traffic, known.calibrations, strict=True):
            self._scores.refit(traffic, calibration.logits())
        late_compiles.warn()
        ranks = get_tp_group()
        if ranks.rank_in_group > 0:
            self._decider = Follower(self._scores, ranks.broadcast_object)
            return
        device, trace = torch.device(self.device).type, config.flags.tile_spec_trace
        args = options(self)
        tally = Tally(args.served_model_name) if args.enable_metrics else None
        save = CalibrationSaver(known).save if known.facts else None  # nominal costs are not cached
        broadcast = None if ranks.world_size == 1 else ranks.broadcast_object
        self._decider = Decider(known.costs, self._scores, known.calibrations, device, trace, tally, save, broadcast)

    def decide_by(self, decider: Any) -> None:
        """Replace the decider."""
        self._decider = decider

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """A step of the scheduler: a prefill, or draft, verification and draft-extend."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self._scores.reset_requests(rows_of(batch))
            self._decider.on_prefill(_new_requests(batch))
        else:  # lengths of the last step, as the host knows no later ones
            self._kv_tokens = committed_tokens(batch)
            self._traffic = Traffic.GREEDY if batch.sampling_info.is_all_greedy else Traffic.SAMPLED
        return super().forward_batch_generation(batch, *args, **kwargs)

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Choose for a step. SGLang calls this before each draft."""
        self._choice = self._decider.choose(batch_size, self._kv_tokens, self._traffic)
        self._states.activate(self._choice.steps)

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify the chosen tokens, and count the outcome."""
        choice, verify_input = self._choice, speculative_input(batch)
        if batch.forward_mode.is_idle() or choice is None:
            return super().verify(batch, *args, **kwargs)
        if choice.steps == 0:
            ChainVerify(self._scores.anchors, self._recent).attach(verify_input)
            return super().verify(batch, *args, **kwargs)
        bs, steps, requests = batch.seq_lens.shape[0], choice.steps, rows_of(batch)
        graphs = None if choice.tier is None else self._graphs
        slots = 0 if graphs is None or choice.tier is None else graphs.slots(choice.tier)
        plan = self._scores.allocate(bs, steps, requests, choice.tokens, slots)
        self._attach_partial_verify(verify_input, choice, plan, graphs)
        chains = None
        if not self._states.shape.trees:
            observation = self._scores.observation(bs, steps, requests)
            chains = ChainVerify(plan.qo_indptr, self._recent, observation, self._draft_ids)
            chains.attach(verify_input)
        with tilespec_graphs.use_graphs(graphs, self.target_worker.model_runner):
            result = super().verify(batch, *args, **kwargs)
        if chains is None or chains.observation is not None:
            self._learn(verify_input, requests, plan, result.accept_lens)
        self._decider.on_verify(steps)
        # For meta_info. A copy, as SGLang copies it to the host on another stream, when the plan may be overwritten.
        result.cap_lens = self._views.first(plan, bs)["verify_lens"].clone()
        return result

    def _attach_partial_verify(self, verify_input: Any, choice: Choice, plan: VerifyPlan, graphs: Any) -> None:
        """Verify a part of the draft tokens, or all of them in a ragged graph."""
        if graphs is not None and choice.tier is not None:
            PartialVerify(plan, choice.tokens, choice.tier, self._views).attach(verify_input)
        elif choice.tokens < verify_input.draft_token.numel():
            tilespec_graphs.check_eager(self.target_worker.model_runner, self._states.shape)
            PartialVerify(plan, choice.tokens, choice.tokens, self._views).attach(verify_input)

    def _stub_skipped_draft_extend(self, batch: Any, batch_output: Any) -> None:
        """After a plain step, mark the placeholders of first draft tokens, so that their rejection does not count."""
        super()._stub_skipped_draft_extend(batch, batch_output)
        drafts = batch_output.next_draft_input
        self._scores.mark_undrafted(drafts.topk_p, drafts.topk_index)
        if samples_drafts():
            drafts.draft_probs = one_hot_probs(drafts.topk_index, draft_vocab_size(self._draft_worker))

    def _new_calibration(self) -> Calibration:
        """A calibration without counts."""
        return Calibration(max(self._states.steps), trees=self._states.shape.trees)

    def _learn(self, verify_input: Any, requests: torch.Tensor, plan: VerifyPlan, accept_lens: Any) -> None:
        steps = verify_input.draft_token_num - 1
        self._scores.observe(len(requests), steps, requests, plan, accept_lens)


def _new_requests(batch: Any) -> int:
    """The requests of a prefill that decode afterwards: without a chunked one, and those that end with their prompt."""
    wanted = (request.sampling_params.max_new_tokens for request in batch.reqs if request is not batch.chunked_req)
    return sum(tokens > 1 for tokens in wanted)


def _log_draft_sampling(args: Any) -> None:
    why = why_no_rejection_sampling(args, unwanted=config.flags.tile_spec_no_rejection_sampling)
    chosen = "samples drafts, and accepts them by rejection sampling" if why is None else "drafts likeliest tokens"
    logger.info("tessera: --tile-spec %s%s", chosen, "" if why is None else f": {why}")


@contextlib.contextmanager
def _exit_with_traceback(doing: str, hint: str = "") -> Iterator[None]:
    """End the process if the block fails, with the traceback and a line."""
    try:
        yield
    except StartRefused:  # it says why
        raise
    except Exception as error:
        logger.exception("tessera: %s failed", doing)
        raise start_error(f"--tile-spec: {doing} failed: {error}{hint}") from error


def adaptive_class(worker: type, mixin: type[AdaptiveWorker]) -> type:
    """SGLang's worker class, extended by TileSpec."""
    return extend_class(worker, mixin)
