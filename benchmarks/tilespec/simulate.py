"""The policy at work on simulated drafts: against every fixed setting, under the cost of an 8B on an H200.

No GPU and no model: confidences and acceptances are drawn, the rest is the code that serves (allocation, observation,
calibration, survivals, correction, policy, each with its lag). Times of verification are near those measured for an
8B's GEMMs on an H200, with attention over the cached tokens added. The profile is off, by another factor for each kind
of step, times jitter by 3 %, and one in fifty has a pause in it. It shows whether choices are good, not how fast a
server is.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tessera.tilespec import calibration
from tessera.tilespec.calibration import Calibration, FitTimer
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.gain import BatchStamp, Survivals
from tessera.tilespec.policy import Choice, Policy
from tessera.tilespec.scores import NO_DRAFT
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.observe_acceptance import observe_acceptance
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify

Floats = npt.NDArray[np.float64]

STEPS = (0, 1, 2, 3, 5, 7)
DEPTHS = max(STEPS)
LAG = 2
GEMM_TOKENS = (1, 32, 64, 128, 192, 256, 257, 320, 321, 447, 448, 449, 512, 513, 1024)
GEMM_MS = (4.0, 4.0, 4.45, 4.8, 5.9, 6.8, 7.5, 8.2, 8.9, 11.0, 14.8, 11.2, 12.0, 13.5, 26.0)
DRAFT_MS, EXTEND_MS, HOST_MS, KV_MS = 0.35, 0.45, 0.3, 131072 / 4.0e12 * 1e3
KV_PER_REQUEST = 1000
JITTER, PAUSES = 0.03, 0.02
REGIME, SLOW = 150, 1.12
"""The host of an H200 was slower for a second or so, again and again, and all steps took 5 to 20 % longer."""
WAIT_MS = 0.7
"""Where requests come and go the device waits for the host, an H200 for so long on average."""
LENGTH, MOST_REQUESTS = 192, 64
SPREAD = 1.0
"""Standard deviation, in logits, of how far the drafts of one request are from the mean of all."""
HOLES = 0.7
"""What drafts lose, in logits, once a plain step has left holes in the draft model's KV cache."""
WORLDS = {name: [(mean, False)] for name, mean in (("easy", 0.92), ("mixed", 0.75), ("hard", 0.5), ("useless", 0.0))}
TURNS = [(0.9, False), (0.9, True)] * 3


def milliseconds(tokens: Floats) -> Floats:
    """A verification, without the KV's share."""
    return np.interp(tokens, GEMM_TOKENS, GEMM_MS)


def cost_table(largest: int) -> CostTable:
    """The profile that a server would have measured, in seconds."""
    sizes = [bs for bs in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256) if bs <= largest]
    tiers = [*range(16, 257, 16), *range(320, 1025, 64)]
    scale = 1e-3

    def by_batch(base: float) -> Curve:
        return Curve(sizes, [scale * (base + 0.004 * bs) for bs in sizes])

    return CostTable(
        tiers=Curve(tiers, (scale * milliseconds(np.array(tiers))).tolist()),
        uniform={s + 1: Curve(sizes, (scale * milliseconds(np.array(sizes) * (s + 1.0))).tolist()) for s in STEPS},
        draft={s: by_batch(s * DRAFT_MS) for s in STEPS if s},
        extend={s + 1: by_batch(EXTEND_MS) for s in STEPS if s},
        kv_seconds=dict.fromkeys(STEPS, scale * KV_MS),
        host_seconds=scale * HOST_MS,
        batch_sizes=sizes,
    )


class World:
    """Requests whose drafts are accepted with probabilities of their own, of which the confidence tells a part.

    Each ends after `LENGTH` tokens, and another one takes its place: the same ones in the same order for every policy.
    """

    def __init__(self, mean: float, sampled: bool, bs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.mean = mean
        self.sampled = sampled
        self.spreads = self.rng.normal(0, SPREAD, (bs, MOST_REQUESTS))
        self.bs = bs
        self.tokens = self.rng.integers(0, LENGTH, bs)  # they did not begin together
        self.without = np.zeros(bs, bool)
        self.holes = np.zeros((bs, 1), bool)

    @property
    def spread(self) -> Floats:
        """Of the requests that run, ``[bs, 1]``."""
        return np.asarray(self.spreads[np.arange(self.bs), self.tokens // LENGTH % MOST_REQUESTS, None])

    def advance(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """So many tokens were generated for each: which requests are new ones, for which a prefill has run."""
        before = self.tokens // LENGTH
        self.tokens = self.tokens + tokens
        places = np.flatnonzero(self.tokens // LENGTH != before)
        self.without[places] = self.holes[places] = False
        return places

    def mark_undrafted(self) -> None:
        """A plain step: nobody has a draft afterwards, and the draft model does not know its token."""
        self.without[:] = self.holes[:] = True

    def draft(self) -> tuple[torch.Tensor, npt.NDArray[np.bool_]]:
        """Confidences and which tokens the target would take, ``[bs, DEPTHS]``; -1 where there is no draft."""
        confidence, taken = self._draft()
        confidence[self.without], taken[self.without] = NO_DRAFT, False
        self.without[:] = False
        return torch.from_numpy(confidence).float(), taken

    def _draft(self) -> tuple[Floats, npt.NDArray[np.bool_]]:
        if self.mean == 0:
            confidence = self.rng.beta(1, 2, (self.bs, DEPTHS))
            return confidence, np.zeros(confidence.shape, bool)
        base = np.log(self.mean / (1 - self.mean)) * 1.3
        logit = base + self.spread - HOLES * self.holes + self.rng.normal(0, 1.8, (self.bs, DEPTHS))
        told = 1 / (1 + np.exp(-(1.2 * logit + self.rng.normal(0, 0.8, logit.shape))))
        if self.sampled:  # the draft is as sure, the target takes others
            logit = 0.5 * logit - 0.5
        taken = self.rng.random(logit.shape) < 1 / (1 + np.exp(-logit))
        return told, taken


class Clock:
    """What steps take in truth, by kind, and what is measured. Now and then all take longer for a while."""

    def __init__(self, policy: Policy, off: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.factors = np.exp(self.rng.normal(0, off, len(policy.correction.measured)))
        self.slow = 1.0

    def takes(self, choice: Choice) -> float:
        """Seconds of a step, without what nobody can foresee."""
        if self.rng.random() < 1 / REGIME:
            self.slow = SLOW if self.slow == 1 else 1.0
        return choice.profiled * float(self.factors[choice.kind]) * self.slow

    def measured(self, seconds: float, *, disturbed: bool) -> float:
        """A step that takes so long, by the device's clock."""
        pause = self.rng.exponential(1.0) if self.rng.random() < PAUSES else 0.0
        wait = 1e-3 * self.rng.exponential(WAIT_MS) if disturbed else 0.0
        return seconds * float(np.exp(self.rng.normal(0, JITTER))) * (1 + pause) + wait


def fixed(world: World, policy: Policy, clock: Clock, steps: int, tokens: int) -> float:
    """Tokens in a second of one setting."""
    row = STEPS.index(steps)
    options, outlook = policy.evaluate(world.bs, world.bs * KV_PER_REQUEST)
    step_seconds = float(outlook.profiled[row, 0] * clock.factors[options.kinds[row, 0]])
    made = seconds = 0.0
    while made < tokens:
        accepted = world.draft()[1][:, :steps].cumprod(1).sum(1)
        world.advance(1 + accepted)
        made, seconds = made + world.bs + accepted.sum(), seconds + step_seconds
    return made / seconds


class Kind:
    """What is known of the drafts of one kind of requests, on the device and on the host."""

    def __init__(self, bs: int) -> None:
        self.table = Calibration(DEPTHS)
        bin_edges, logits = (torch.from_numpy(array) for array in (calibration.bin_edges(), self.table.logits()))
        self.model = AcceptanceModel.create(bin_edges, logits, bs, "cpu")
        self.survivals = Survivals(DEPTHS, STEPS, self.table.mean(), self.table.accepted_ratio())
        self._timer, self._fit_next = FitTimer(), False

    def fit(self) -> None:
        """Before a step, if it is time."""
        self._timer.on_step()
        if self._fit_next:
            self.table.update(self.model.counts.numpy())
            self.model.logits.copy_(torch.from_numpy(self.table.logits()))
            self.survivals.set_prior(self.table.mean(), self.table.accepted_ratio())
            self._fit_next = False

    def verify(self, world: World, choice: Choice) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Draft, verify and learn: accepted tokens ``[bs]``, and the histogram."""
        requests, steps = torch.arange(world.bs), choice.steps
        confidence, taken = world.draft()
        plan = VerifyPlan.create(world.bs, steps, DEPTHS, "cpu")
        allocate_verify(confidence[:, :steps], requests, self.model, choice.tokens, plan)
        accepted = np.minimum(taken[:, :steps].cumprod(1).sum(1), plan.verify_lens.numpy() - 1)
        lens = torch.from_numpy(accepted + 1).int()
        observe_acceptance(confidence[:, :steps], requests, plan.verify_lens, lens, self.model)
        self._fit_next = self._timer.on_verify()
        return accepted, plan.histogram.numpy()


def tilespec(policy: Policy, clock: Clock, world: World, kind: Kind, tokens: int) -> tuple[float, Counter[str]]:
    """Tokens in a second of the policy with new requests, and what it chose."""
    kind.model.offsets.zero_()
    policy.switch_survivals(kind.survivals)
    timed: deque[tuple[Choice, float, bool]] = deque()
    late: deque[tuple[npt.NDArray[np.int32], int, BatchStamp] | None] = deque([None] * LAG)
    made = seconds = 0.0
    new = np.arange(world.bs)
    chosen: Counter[str] = Counter()
    while made < tokens:
        news = late.popleft()
        if news:
            histogram, steps, stamp = news
            kind.survivals.update(histogram, steps, stamp.freshness, current=kind.survivals.is_current(stamp))
        if len(timed) > LAG:
            past, measured, disturbed = timed.popleft()
            policy.observe(past, measured, disturbed=disturbed)
        kind.fit()
        kind.model.offsets[new] = 0.0
        policy.add_new_requests(len(new))
        choice = policy.choose(world.bs, world.bs * KV_PER_REQUEST)
        chosen[f"{choice.steps}{'' if choice.tier is None else f' in {choice.tier}'}"] += 1
        took = clock.takes(choice)
        disturbed = len(new) > 0
        timed.append((choice, clock.measured(took, disturbed=disturbed), disturbed))
        late.append(None)
        accepted = np.zeros(world.bs, np.int64)
        if choice.steps:
            accepted, histogram = kind.verify(world, choice)
            late[-1] = histogram, choice.steps, kind.survivals.stamp(1)
        else:
            world.mark_undrafted()
        new = world.advance(1 + accepted)
        made, seconds = made + world.bs + accepted.sum(), seconds + took / clock.slow  # as of the fixed settings
    return made / seconds, chosen


@dataclass
class Run:
    """One world: tokens in a second of the policy and of each fixed setting, and what was chosen how often."""

    got: float
    fixed: dict[int, float]
    chosen: Counter[str]

    @property
    def over_best(self) -> float:
        """Of the best fixed setting."""
        return self.got / max(self.fixed.values())


def simulate(traffic: Sequence[tuple[float, bool]], bs: int, seed: int, tokens: int, off: float) -> list[Run]:
    """Requests, times and a profile of their own, from a cold start.

    Args:
        traffic: for one turn after the other, how often drafts are right, and whether the target samples.
        bs: requests that run at once.
        seed: of everything.
        tokens: of each request's place in a turn.
        off: how far the profile is off.
    """
    kinds = {sampled: Kind(bs) for _, sampled in traffic}
    policy = Policy(cost_table(256), kinds[traffic[0][1]].survivals)
    clock = Clock(policy, off, seed)
    runs = []
    for turn, (mean, sampled) in enumerate(traffic):
        worlds = [World(mean, sampled, bs, seed + turn) for _ in range(len(STEPS) + 1)]
        rates = {s: fixed(world, policy, clock, s, bs * tokens) for s, world in zip(STEPS, worlds[1:], strict=True)}
        got, chosen = tilespec(policy, clock, worlds[0], kinds[sampled], bs * tokens)
        runs.append(Run(got, rates, chosen))
    return runs


def main() -> None:
    """Print a line for each kind of draft and number of requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000, help="of each place in a run, the first ones included")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64], help="requests that run at once")
    parser.add_argument("--worlds", type=int, default=12, help="runs of each (default %(default)s)")
    parser.add_argument("--off", type=float, default=0.05, help="how far the profile is off (default %(default)s)")
    parser.add_argument("--turns", action="store_true", help="greedy and sampled requests in turn, three times each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("drafts   requests  over best: mean, worst  over none  over k=3  chosen")
    for name, traffic in ({"in turn": TURNS} if options.turns else WORLDS).items():
        for bs in options.requests:
            runs = [
                run
                for seed in range(options.worlds)
                for run in simulate(traffic, bs, seed, options.tokens, options.off)
            ]
            over = [run.over_best for run in runs]
            over_none, over_k3 = (np.mean([run.got / run.fixed[s] for run in runs]) for s in (0, 3))
            chosen = sum((run.chosen for run in runs), Counter[str]())
            top = ", ".join(f"{what}: {n / chosen.total():.0%}" for what, n in chosen.most_common(4))
            print(
                f"{name:8} {bs:8d} {np.mean(over):16.3f} {min(over):6.3f} {over_none:10.3f} {over_k3:9.3f}  {top}",
                flush=True,
            )


if __name__ == "__main__":
    main()
