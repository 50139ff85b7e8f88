"""SGLang's EAGLE and STANDALONE workers, with a number of drafted and of verified tokens that changes every step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context

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
from tessera_patches.tilespec.attention.flash import fuse_verify
from tessera_patches.tilespec.draft.drafts import score_chains
from tessera_patches.tilespec.draft.proposals import certain
from tessera_patches.tilespec.draft.vocabulary import draft_ids, vocabulary
from tessera_patches.tilespec.extend.last_rows import last_rows_only
from tessera_patches.tilespec.start import late_compiles
from tessera_patches.tilespec.start import profile as tilespec_profile
from tessera_patches.tilespec.start.launches import cache_sglang_launches
from tessera_patches.tilespec.start.rehearsal import as_served
from tessera_patches.tilespec.verify import graphs as tilespec_graphs
from tessera_patches.tilespec.verify.accept import Chains
from tessera_patches.tilespec.verify.layout import PlanViews
from tessera_patches.tilespec.verify.load_once import load_once
from tessera_patches.tilespec.verify.logits import as_multiplied, drafting
from tessera_patches.tilespec.verify.pack import Cut

logger = logging.getLogger(__name__)

_SGLANG = "sglang.srt.speculative.eagle_worker_v2"
_HINT = (
    ". Out of memory: lower --mem-fraction-static, capture fewer sizes (--cuda-graph-max-bs-decode), or add "
    "--tile-spec-no-rejection-sampling"
)
_SWITCH = "Switch adaptive runtime state"
"""What SGLang logs whenever the number of steps changes: rarely in its own mode, all the time in ours."""


class States:
    """SGLang's runtime states (attention backends and graphs), one for each number of drafted tokens.

    Stands where SGLang's own ``AdaptiveController`` would: its workers build the states for it and keep the one in
    force. What it does not do is decide; `SizedWorker` does.
    """

    def __init__(self, worker: Any, shape: DraftShape) -> None:
        self._worker = worker
        self.built: dict[int, Any] = {}
        self.shape = shape
        self.steps = shape.drafted

    def register(self, state: Any) -> None:
        """Take a state that exists."""
        self.built[state.speculative_num_draft_tokens - 1] = state

    def init_states(self, cuda_graph_bs: list[int] | None) -> None:
        """Build the others."""
        for steps in self.steps:
            if steps not in self.built:
                widths = self.shape.state(steps)
                self.register(self._worker.build_adaptive_runtime_state(*widths, cuda_graph_bs=cuda_graph_bs))

    def activate(self, steps: int) -> None:
        """Put a state in force."""
        if steps + 1 != self._worker.speculative_num_draft_tokens:
            log = get_context()._overrides_log
            before = len(log)
            self._worker.apply_runtime_state(self.built[steps])
            truncate(log, before)  # SGLang keeps a line for each switch, for ever


class SizedWorker(Mixin):
    """What TileSpec adds to an ``EAGLEWorkerV2`` or ``StandaloneWorkerV2``; mixed in by `sized`.

    The draft's probabilities, the table that turns them into chances of acceptance, and the outcome stay on the device
    (`Scores`). The host decides two numbers a step, how many tokens to draft for each request and how many to verify in
    all; the device decides whose.

    Attributes:
        scores_class: what keeps the draft's side.
        score_drafts: makes SGLang's draft worker fill it.
    """

    scores_class: type[Scores] = Scores
    score_drafts = staticmethod(score_chains)
    _decider: Any
    _graphs: tilespec_graphs.RaggedGraphs | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adaptive_controller = None
        shape = DraftShape(self.speculative_num_steps, self.topk, self.speculative_num_draft_tokens)
        self._states = States(self, shape)
        self._choice: Choice | None = None
        self._kv_tokens = 0
        self._traffic = Traffic.GREEDY
        self._views = PlanViews()

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Also the scores, which the draft's graphs write."""
        # SGLang's workers create their draft worker themselves: it becomes one of ours afterwards.
        drafts = self._draft_worker
        self.score_drafts(drafts)
        super().alloc_memory_pool(**kwargs)
        requests, depths = self.req_to_token_pool.req_to_token.shape[0], max(self._states.steps)
        table = torch.from_numpy(self._new_calibration().logits())
        model = AcceptanceModel.create(torch.from_numpy(bin_edges()), table, requests, self.device)
        self._scores = self.scores_class(requests, depths, self.device, model)
        drafts.score(self._scores)
        self._recent = RecentTokens(requests, depths + 1)
        cache_sglang_launches(self.device)
        last_rows_only(drafts.draft_runner.model, drafts.read)
        if not self._states.shape.trees:  # of those SGLang accepts some
            as_multiplied(self.target_worker.model_runner.model, ForwardMode.is_target_verify)
            as_multiplied(drafts.draft_runner.model, drafting)
        self._draft_ids = draft_ids(drafts) if self.server_args.speculative_use_rejection_sampling else None

    def init_cuda_graphs(self) -> None:
        """Also those of every other number of drafted tokens; SGLang builds them for a controller."""
        with TemporaryFields(self, adaptive_controller=self._states):
            with _exit_with_traceback("capturing graphs", _HINT):
                super().init_cuda_graphs()
                self._graphs = tilespec_graphs.capture(self.target_worker.model_runner, self._states.shape)
            for state in self._states.built.values():
                fuse_verify(state.target_attn_backend)
                load_once(state.target_graph_runner)
        filter_log(_SGLANG, _SWITCH)

    def profile(self) -> None:
        """Learn what steps cost here; to be called once every graph exists and before anything is served."""
        if get_tp_group().rank_in_group == 0:
            _say_how_drafts_are_chosen(self.server_args)
        with _exit_with_traceback("measuring steps"), as_served(self):
            unknown = self._new_calibration(), self._new_calibration()
            known = tilespec_profile.profile(self, self._states.built, self._graphs, unknown)
        for traffic, calibration in zip(Traffic, known.calibrations, strict=True):
            self._scores.refit(traffic, calibration.logits())
        late_compiles.warn()
        ranks = get_tp_group()
        if ranks.rank_in_group > 0:
            self._decider = Follower(self._scores, ranks.broadcast_object)
            return
        device, trace = torch.device(self.device).type, config.flags.tile_spec_trace
        tally = Tally(self.server_args.served_model_name) if self.server_args.enable_metrics else None
        save = CalibrationSaver(known).save if known.facts else None  # nominal costs are not cached
        broadcast = None if ranks.world_size == 1 else ranks.broadcast_object
        self._decider = Decider(known.costs, self._scores, known.calibrations, device, trace, tally, save, broadcast)

    def decide_by(self, decider: Any) -> None:
        """Have another one decide than `tessera.tilespec.decider.Decider`."""
        self._decider = decider

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """One step of the scheduler: a prefill, or draft, verify and extend."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self._scores.reset_requests(batch.req_pool_indices)
            self._decider.on_prefill(_joining(batch))
        else:  # the device knows the lengths of now; the host knows those of a step ago
            self._kv_tokens = sum(request.kv_committed_len for request in batch.reqs)
            self._traffic = Traffic.GREEDY if batch.sampling_info.is_all_greedy else Traffic.SAMPLED
        return super().forward_batch_generation(batch, *args, **kwargs)

    def activate_step_by_batch(self, batch_size: int) -> None:
        """SGLang calls this before each draft."""
        self._choice = self._decider.choose(batch_size, self._kv_tokens, self._traffic)
        self._states.activate(self._choice.steps)

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify what was chosen, and learn from what was accepted."""
        choice, verify_input = self._choice, batch.spec_info
        if batch.forward_mode.is_idle() or choice is None:
            return super().verify(batch, *args, **kwargs)
        if choice.steps == 0:
            Chains(self._scores.anchors, self._recent).attach(verify_input)
            return super().verify(batch, *args, **kwargs)
        bs, steps, requests = batch.seq_lens.shape[0], choice.steps, batch.req_pool_indices
        graphs = None if choice.tier is None else self._graphs
        slots = 0 if graphs is None or choice.tier is None else graphs.slots(choice.tier)
        plan = self._scores.allocate(bs, steps, requests, choice.tokens, slots)
        self._cut(verify_input, choice, plan, graphs)
        chains = None
        if not self._states.shape.trees:
            observation = self._scores.observation(bs, steps, requests)
            chains = Chains(plan.qo_indptr, self._recent, observation, self._draft_ids)
            chains.attach(verify_input)
        with tilespec_graphs.in_force(graphs, self.target_worker.model_runner):
            result = super().verify(batch, *args, **kwargs)
        if chains is None or chains.observation is not None:
            self._learn(verify_input, requests, plan, result.accept_lens)
        self._decider.on_verify(steps)
        # SGLang counts them by request, in meta_info; it copies them on another stream, after the plan is used again.
        result.cap_lens = self._views.first(plan, bs)["verify_lens"].clone()
        return result

    def _cut(self, verify_input: Any, choice: Choice, plan: VerifyPlan, graphs: Any) -> None:
        """Have part of the drafts verified, or all in a ragged graph, where a greater size can be cheaper."""
        if graphs is not None and choice.tier is not None:
            Cut(plan, choice.tokens, choice.tier, self._views).attach(verify_input)
        elif choice.tokens < verify_input.draft_token.numel():
            tilespec_graphs.check_eager(self.target_worker.model_runner, self._states.shape)
            Cut(plan, choice.tokens, choice.tokens, self._views).attach(verify_input)

    def _stub_skipped_draft_extend(self, batch: Any, batch_output: Any) -> None:
        """After a plain step there is no first token of a next draft: say so, or its rejection would count."""
        super()._stub_skipped_draft_extend(batch, batch_output)
        drafts = batch_output.next_draft_input
        self._scores.mark_undrafted(drafts.topk_p, drafts.topk_index)
        if self.server_args.speculative_use_rejection_sampling:
            drafts.draft_probs = certain(drafts.topk_index, vocabulary(self._draft_worker))

    def _new_calibration(self) -> Calibration:
        """What is known of acceptance before anything was tried."""
        return Calibration(max(self._states.steps), trees=self._states.shape.trees)

    def _learn(self, verify_input: Any, requests: torch.Tensor, plan: VerifyPlan, accept_lens: Any) -> None:
        steps = verify_input.draft_token_num - 1
        self._scores.observe(len(requests), steps, requests, plan, accept_lens)


def _joining(batch: Any) -> int:
    """Requests of a prefill that decode from now on: not one whose prompt goes on, and none that ends with its own."""
    wanted = (request.sampling_params.max_new_tokens for request in batch.reqs if request is not batch.chunked_req)
    return sum(tokens > 1 for tokens in wanted)


def _say_how_drafts_are_chosen(args: Any) -> None:
    why = why_no_rejection_sampling(args, unwanted=config.flags.tile_spec_no_rejection_sampling)
    chosen = "samples drafts, and accepts them by rejection sampling" if why is None else "drafts likeliest tokens"
    logger.info("tessera: --tile-spec %s%s", chosen, "" if why is None else f": {why}")


@contextlib.contextmanager
def _exit_with_traceback(doing: str, hint: str = "") -> Iterator[None]:
    """End the process with one line if this fails, and with the traceback before it."""
    try:
        yield
    except StartRefused:  # it says why
        raise
    except Exception as error:
        logger.exception("tessera: %s failed", doing)
        raise start_error(f"--tile-spec: {doing} failed: {error}{hint}") from error


def sized(worker: type, mixin: type[SizedWorker]) -> type:
    """``worker`` with TileSpec on top."""
    return extend_class(worker, mixin)
