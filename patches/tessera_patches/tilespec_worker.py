"""SGLang's EAGLE and STANDALONE workers, with a number of drafted and of verified tokens that changes every step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.runtime_context import get_context

from tessera import config
from tessera.tilespec.calibration import Calibration, edges
from tessera.tilespec.candidates import candidates
from tessera.tilespec.decider import Decider
from tessera.tilespec.policy import Choice
from tessera.tilespec.refusals import refused_model
from tessera.tilespec.scores import NO_DRAFT, Scores
from tessera.tilespec.tally import Tally
from tessera_kernels.acceptance_model import AcceptanceModel
from tessera_patches import tilespec_graphs, tilespec_profile
from tessera_patches.apply import refusing
from tessera_patches.tilespec_verify import Cut, attach

logger = logging.getLogger(__name__)

_SGLANG = "sglang.srt.speculative.eagle_worker_v2"
_HINT = ". Out of memory: lower --mem-fraction-static, or capture fewer sizes (--cuda-graph-max-bs-decode)"
_SWITCH = "Switch adaptive runtime state"
"""What SGLang logs whenever the number of steps changes: rarely in its own mode, all the time in ours."""


class States:
    """SGLang's runtime states (attention backends and graphs), one for each number of drafted tokens.

    Stands where SGLang's own ``AdaptiveController`` would: its workers build the states for it and keep the one in
    force. What it does not do is decide; `SizedWorker` does.
    """

    def __init__(self, worker: Any, steps: list[int]) -> None:
        self._worker = worker
        self.built: dict[int, Any] = {}
        self.steps = steps

    def register(self, state: Any) -> None:
        """Take a state that exists."""
        self.built[state.speculative_num_steps] = state

    def init_states(self, cuda_graph_bs: list[int] | None) -> None:
        """Build the others."""
        for steps in self.steps:
            if steps not in self.built:
                self.register(self._worker.build_adaptive_runtime_state(steps, steps + 1, cuda_graph_bs=cuda_graph_bs))

    def activate(self, steps: int) -> None:
        """Put a state in force."""
        if steps != self._worker.speculative_num_steps:
            log = get_context()._overrides_log
            before = len(log)
            self._worker.apply_runtime_state(self.built[steps])
            del log[before:]  # SGLang keeps a line for each switch, for ever


class SizedWorker:
    """What TileSpec adds to an ``EAGLEWorkerV2`` or ``StandaloneWorkerV2``; mixed in by `sized`.

    The draft's probabilities, the table that turns them into chances of acceptance, and the outcome stay on the device
    (`Scores`). The host decides two numbers a step, how many tokens to draft for each request and how many to verify in
    all; the device decides whose.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adaptive_controller = None
        self._states = States(self, candidates(self.speculative_num_steps))
        self._choice: Choice | None = None
        self._kv_tokens = 0

    def alloc_memory_pool(self: Any, **kwargs: Any) -> None:
        """Also the scores, which the draft's graphs write."""
        refusal = refused_model(keeps_state=mambaish_config(self.target_worker.model_runner.model_config) is not None)
        if refusal is not None:
            raise SystemExit(refusing(refusal))
        super().alloc_memory_pool(**kwargs)  # type: ignore[misc]
        requests, depths = self.req_to_token_pool.req_to_token.shape[0], max(self._states.steps)
        table = torch.from_numpy(Calibration(depths).logits())
        model = AcceptanceModel.create(torch.from_numpy(edges()), table, requests, self.device)
        self._scores = Scores(requests, depths, self.device, model)
        _score_drafts(self._draft_worker, self._scores)

    def init_cuda_graphs(self: Any) -> None:
        """Also those of every other number of drafted tokens; SGLang builds them for a controller."""
        self.adaptive_controller = self._states
        try:
            with _or_refuse("capturing graphs", _HINT):
                super().init_cuda_graphs()  # type: ignore[misc]
                self._graphs = tilespec_graphs.capture(self.target_worker.model_runner, max(self._states.steps))
        finally:
            self.adaptive_controller = None
        logging.getLogger(_SGLANG).addFilter(lambda record: _SWITCH not in record.getMessage())

    def profile(self: Any) -> None:
        """Learn what steps cost here; to be called once every graph exists and before anything is served."""
        with _or_refuse("measuring steps"):
            known = tilespec_profile.profile(
                self, self._states.built, self._graphs, Calibration(max(self._states.steps))
            )
        self._scores.refit(known.calibration.logits())
        device, trace = torch.device(self.device).type, config.flags.tile_spec_trace
        tally = Tally(self.server_args.served_model_name) if self.server_args.enable_metrics else None
        self._decider = Decider(known.costs, self._scores, known.calibration, device, trace, tally)

    def forward_batch_generation(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """One step of the scheduler: a prefill, or draft, verify and extend."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self._scores.forget(batch.req_pool_indices)
            self._decider.interrupted()
        else:  # the device knows the lengths of now; the host knows those of a step ago
            self._kv_tokens = sum(request.kv_committed_len for request in batch.reqs)
        return super().forward_batch_generation(batch, *args, **kwargs)  # type: ignore[misc]

    def activate_step_by_batch(self: Any, batch_size: int) -> None:
        """SGLang calls this before each draft."""
        self._choice = self._decider.choose(batch_size, self._kv_tokens)
        self._states.activate(self._choice.steps)

    def verify(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify what was chosen, and learn from what was accepted."""
        choice = self._choice
        if batch.forward_mode.is_idle() or choice is None or choice.steps == 0:
            return super().verify(batch, *args, **kwargs)  # type: ignore[misc]
        bs, steps = len(batch.seq_lens), choice.steps
        plan = self._scores.allocate(bs, steps, batch.req_pool_indices, choice.tokens)
        graphs = None if choice.tier is None else self._graphs
        if graphs is not None:  # also for all tokens: a greater size can be cheaper
            attach(batch.spec_info, Cut(plan, choice.tokens, choice.tier))
        elif choice.tokens < bs * (steps + 1):
            tilespec_graphs.check_eager(self.target_worker.model_runner)
            attach(batch.spec_info, Cut(plan, choice.tokens, choice.tokens))
        with tilespec_graphs.in_force(graphs, self.target_worker.model_runner):
            result = super().verify(batch, *args, **kwargs)  # type: ignore[misc]
        self._scores.observe(bs, steps, batch.req_pool_indices, plan, result.accept_lens)
        self._decider.drafted(steps, plan)
        # SGLang counts them by request, in meta_info; it copies them on another stream, after the plan is used again.
        result.cap_lens = plan.verify_lens[:bs].clone()
        return result

    def _stub_skipped_draft_extend(self: Any, batch: Any, batch_output: Any) -> None:
        """After a plain step there is no first token of a next draft: say so, or its rejection would count."""
        super()._stub_skipped_draft_extend(batch, batch_output)  # type: ignore[misc]
        batch_output.next_draft_input.topk_p.fill_(NO_DRAFT)


@contextlib.contextmanager
def _or_refuse(doing: str, hint: str = "") -> Iterator[None]:
    """End the process with one line if this fails, and with the traceback before it."""
    try:
        yield
    except Exception as error:
        logger.exception("tessera: %s failed", doing)
        raise SystemExit(refusing(f"--tile-spec: {doing} failed: {error}{hint}")) from error


def sized(worker: type) -> type:
    """``worker`` with TileSpec on top."""
    return type(f"Sized{worker.__name__}", (SizedWorker, worker), {})


def _scored(kind: Any) -> type:
    """SGLang's draft worker ``kind``, which also notes the probability of every drafted token.

    SGLang computes it only where it samples drafts, and otherwise puts 1. It is taken where the logits are: between the
    draft model's forwards, and captured with them where there are graphs.
    """

    class ScoredDrafts(kind):
        scores: Scores
        chains: dict[int, tuple[Any, Any]]
        _topk1_parents_prealloc: Any
        _topk1_score_indices_prealloc: Any

        def _rebuild_topk1_chain_buffers(self) -> None:
            """SGLang makes these constants anew whenever the number of steps changes: here, once for each."""
            if self.speculative_num_steps not in self.chains:
                super()._rebuild_topk1_chain_buffers()
                made = self._topk1_parents_prealloc, self._topk1_score_indices_prealloc
                self.chains[self.speculative_num_steps] = made
            constants = self.chains[self.speculative_num_steps]
            self._topk1_parents_prealloc, self._topk1_score_indices_prealloc = constants

        def _capture_cuda_graphs(self) -> None:
            """Capture draft-extends at their own width.

            SGLang takes that of the command line in its adaptive mode too, and then runs other widths without a graph.
            """
            args = self.draft_runner.server_args
            width = args.speculative_num_draft_tokens
            args.override("tessera", speculative_num_draft_tokens=self.speculative_num_draft_tokens)
            try:
                super()._capture_cuda_graphs()
            finally:
                args.override("tessera", speculative_num_draft_tokens=width)

        def draft(self, batch: Any) -> Any:
            """Draft for a batch; the first token's probability comes with the batch."""
            self.scores.first(batch.spec_info.topk_p)
            return super().draft(batch)

        def draft_forward(self, forward_batch: Any) -> Any:
            """All forwards of a draft."""
            self.scores.begin()
            with _tapped(self.draft_runner, "forward") as outputs:
                outputs.on = self.scores.next
                return super().draft_forward(forward_batch)

        def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
            """Runs the draft model over the verified tokens, and picks the first token of the next draft."""
            graphs = self.cuda_graph_runner_for_draft_extend
            with _tapped(self.draft_runner, "forward") as eager, _tapped(graphs, "execute") as replayed:
                super()._draft_extend_for_decode(batch, batch_result)
            logits = (eager.last or replayed.last).next_token_logits
            batch_result.next_draft_input.topk_p = self.scores.probability(logits)

    return ScoredDrafts


class _Tap:
    """Sees each output of a function.

    Attributes:
        last: the last one.
        on: called with each.
    """

    def __init__(self) -> None:
        self.last: Any = None
        self.on: Any = None


@contextlib.contextmanager
def _tapped(owner: Any, name: str) -> Iterator[_Tap]:
    """Watch a method of an object for a while; of None there is nothing to see."""
    tap = _Tap()
    if owner is None:
        yield tap
        return
    original = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        tap.last = getattr(output, "logits_output", output)
        if tap.on is not None:
            tap.on(tap.last.next_token_logits)
        return output

    setattr(owner, name, watched)
    try:
        yield tap
    finally:
        delattr(owner, name)


def _score_drafts(draft_worker: Any, scores: Scores) -> None:
    """SGLang's workers create their draft worker themselves: it becomes one of ours afterwards."""
    draft_worker.__class__ = _scored(type(draft_worker))
    draft_worker.scores, draft_worker.chains = scores, {}
