"""The one penalizer in SGLang's own orchestrator: batches that are merged and filtered, and requests that come back."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.penaltylib.orchestrator import BatchedPenalizerOrchestrator
from sglang.srt.sampling.sampling_params import SamplingParams

from tessera.tilespec.penalties import Penalties
from tessera_patches.tilespec.verify.penalties import TokenPenalizer, use_token_penalizer

VOCABULARY, EOS = 50, 3


def request(prompt: int, **params: Any) -> Req:
    """One that ends with `EOS`, or with a token of its tokenizer."""
    req = Req("r", "", [5] * prompt, SamplingParams(**params), eos_token_ids={EOS}, vocab_size=VOCABULARY)
    req.tokenizer = SimpleNamespace(eos_token_id=4, additional_stop_token_ids=None)
    return req


class Batch:
    """A batch of SGLang's, as far as penalizers look at it; they keep no more than a weak reference."""

    device = "cpu"

    def __init__(self, reqs: list[Req]) -> None:
        self.reqs = reqs
        self.orchestrator = BatchedPenalizerOrchestrator.__new__(BatchedPenalizerOrchestrator)
        use_token_penalizer(
            BatchedPenalizerOrchestrator.__init__,
            self.orchestrator,
            VOCABULARY,
            self,
            set(),
        )

    @property
    def penalties(self) -> Penalties:
        """What a forward gets."""
        found: Penalties = self.orchestrator.penalizers[TokenPenalizer].penalties
        return found

    def step(self) -> None:
        """Before a decode step SGLang tells penalizers the last token of each request."""
        if self.orchestrator.is_required:
            self.orchestrator.cumulate_output_tokens(torch.zeros(len(self.reqs), dtype=torch.int64))

    def keep(self, places: list[int]) -> None:
        """The others ended, or were retracted."""
        self.reqs = [self.reqs[place] for place in places]
        self.orchestrator.filter(torch.tensor(places))

    def merge(self, other: Batch) -> None:
        """The other was prefilled."""
        self.orchestrator.merge(other.orchestrator)
        self.reqs = [*self.reqs, *other.reqs]

    def check(self) -> None:
        """Every token that the host knows is counted once."""
        found = self.penalties
        for place, req in enumerate(self.reqs):
            expected = torch.bincount(torch.tensor(req.output_ids.tolist(), dtype=torch.int64), minlength=VOCABULARY)
            assert found.counts[place].tolist() == expected.tolist()
            assert (int(found.host_tokens[place]), int(found.prompts[place])) == (len(req.output_ids), 4)
            params = req.sampling_params
            factors = float(found.frequency[place]), float(found.repetition[place]), int(found.min_new_tokens[place])
            assert factors == (params.frequency_penalty, params.repetition_penalty, params.min_new_tokens)
            stops = {
                int(t)
                for t, bar in zip(found.stops[place], found.stop_penalties[place], strict=True)
                if bar == -math.inf
            }
            assert stops == ({EOS, 4} | (params.stop_token_ids or set()) if params.min_new_tokens else set())


KINDS: tuple[dict[str, Any], ...] = (
    {"frequency_penalty": 0.5},
    {"repetition_penalty": 1.25},
    {"min_new_tokens": 9, "stop_token_ids": [7, 8]},
    {"min_new_tokens": 2},
    {},
)


def test_batches_come_and_go() -> None:
    """300 random events: steps of several tokens, merges, requests that end, and some that are prefilled again."""
    chooser = random.Random(3)
    running = Batch([request(4, **kind) for kind in KINDS])
    away: list[Req] = []
    for _ in range(300):
        event = chooser.random()
        if event < 0.6:
            for req in running.reqs:
                req.output_ids.extend(chooser.randrange(VOCABULARY) for _ in range(chooser.randrange(4)))
            running.step()
            if running.orchestrator.is_required:
                running.check()
        elif event < 0.8 or len(running.reqs) < 2:
            joining = Batch([away.pop() if away else request(4, **chooser.choice(KINDS)) for _ in range(2)])
            if joining.orchestrator.is_required:
                joining.check()  # as the token after the prompt sees it
            running.merge(joining)
        else:
            gone = chooser.randrange(len(running.reqs))
            away.append(running.reqs[gone])
            running.keep([place for place in range(len(running.reqs)) if place != gone])
    assert len(running.reqs) > 3
    plain = Batch([request(4), request(4)])
    assert not plain.orchestrator.is_required
    plain.step()
    plain.merge(Batch([request(4)]))
    assert not plain.orchestrator.is_required
