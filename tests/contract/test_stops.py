"""Where SGLang's own request ends when several tokens are accepted at once: where it ends when they come one by one."""

from __future__ import annotations

import random
import signal
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.sampling.sampling_params import SamplingParams
from transformers import AutoTokenizer

from tessera import carry
from tessera.capabilities.embed.options import EmbedOptions, Pooling
from tessera_patches.guard import scheduler as guard
from tessera_patches.guard.stops import finish_token_by_token
from tessera_patches.rows import state
from tessera_testing.carried import requested
from tessera_testing.tiny import TINY

STOCK = Req.update_finish_state
OURS = partial(finish_token_by_token, STOCK)
EOS = 3
"""Of these requests; texts of the tiny model's tokenizer have no end of their own."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The tiny model's."""
    found = AutoTokenizer.from_pretrained(TINY)
    found.additional_stop_token_ids = None  # as SGLang's own loader leaves it
    return found


def request(tokenizer: Any, **params: Any) -> Req:
    """As a scheduler has it."""
    sampling = SamplingParams(**params)
    sampling.normalize(tokenizer)
    req = Req("r", "", [5, 6, 7], sampling, eos_token_ids={EOS}, vocab_size=1024)
    req.tokenizer = tokenizer
    return req


def ended(req: Req) -> tuple[Any, list[int]]:
    """The reason and the tokens; no reason while it goes on."""
    return req.finished_reason and req.finished_reason.to_json(), list(req.output_ids_through_stop)


def plain(req: Req, tokens: list[int]) -> tuple[Any, list[int]]:
    """One token a step, by stock SGLang."""
    for token in tokens:
        req.output_ids.append(token)
        STOCK(req)
        if req.finished():
            break
    return ended(req)


def drafted(req: Req, tokens: list[int], steps: list[int], finish: Callable[[Req, int], None] = OURS) -> Any:
    """The same with as many tokens a step as ``steps`` say, which add up to all."""
    begin = 0
    for step in steps:
        req.output_ids.extend(array("q", tokens[begin : begin + step]))
        begin += step
        finish(req, step)
        if req.finished():
            break
    return ended(req)


def test_steps_do_not_matter(tokenizer: Any) -> None:
    """300 random requests with every kind of stop, in steps of every size; where none needs our hook, it can go."""
    chooser = random.Random(7)
    text = tokenizer("import sys\nif sys.argv: sys.exit(1)\nfor a in b: print(a, sys.path)\n" * 3)["input_ids"]
    reasons, stock_differs = set(), 0
    for _ in range(300):
        tokens = chooser.sample(text, len(text)) if chooser.random() < 0.5 else list(text)
        tokens[chooser.randrange(len(tokens))] = EOS
        strings = ["sys.", "a in", "print(a", ".exit", "\n"]
        params = {
            "max_new_tokens": chooser.randrange(1, len(tokens)),
            "stop_token_ids": chooser.sample(tokens, chooser.randrange(3)),
            "stop": chooser.sample(strings, chooser.randrange(4)),
            "stop_regex": chooser.sample(["sys$", "[a-z] in [a-z]", "exit.1"], chooser.randrange(3)),
            "ignore_eos": chooser.random() < 0.3,
        }
        steps: list[int] = []
        while sum(steps) < len(tokens):
            steps.append(min(chooser.randrange(1, 7), len(tokens) - sum(steps)))
        expected = plain(request(tokenizer, **params), tokens)
        assert drafted(request(tokenizer, **params), tokens, steps) == expected, params
        stock_differs += drafted(request(tokenizer, **params), tokens, steps, STOCK) != expected
        reasons.add((expected[0]["type"], type(expected[0].get("matched"))))
    assert reasons == {("length", type(None)), ("stop", int), ("stop", str)}
    assert stock_differs > 0


@pytest.mark.parametrize(
    ("params", "tokens", "count"),
    [
        ({"max_new_tokens": 5, "stop_token_ids": [18]}, [734, 274, 734, 18, 499, 869], 4),
        ({"max_new_tokens": 4, "stop_token_ids": [18]}, [734, 274, 734, 18, 499, 869], 4),  # the limit, as in plain
        ({"max_new_tokens": 3, "stop_token_ids": [18]}, [734, 274, 734, 18, 499, 869], 3),
        ({"max_new_tokens": 9, "stop_token_ids": [734], "stop": " sys."}, [274, 734, 18, 499], 2),
    ],
)
def test_what_comes_first_ends_it(tokenizer: Any, params: dict[str, Any], tokens: list[int], count: int) -> None:
    """In one step."""
    reason, found = drafted(request(tokenizer, **params), tokens, [len(tokens)])
    assert found == tokens[:count]
    assert (reason, found) == plain(request(tokenizer, **params), tokens)


def test_an_abort_brings_no_more_than_was_asked_for(tokenizer: Any) -> None:
    """Every accepted token up to the limit or a stop, and the abort as the reason."""
    for params, count in (({"max_new_tokens": 2}, 2), ({"max_new_tokens": 9, "stop_token_ids": [8]}, 1), ({}, 4)):
        req = request(tokenizer, **params)
        req.to_finish = FINISH_ABORT("gone")
        reason, found = drafted(req, [8, 9, 10, 11], [4])
        assert (reason["type"], found) == ("abort", [8, 9, 10, 11][:count])


def test_a_grammar_ends_with_its_last_token(tokenizer: Any) -> None:
    """It has read a whole step by then, and would seem to end with the step's first token."""

    class Ended:
        def is_terminated(self) -> bool:
            return True

    req = request(tokenizer, max_new_tokens=9)
    req.grammar = Ended()
    reason, found = drafted(req, [8, 9, 10], [3])
    assert (reason["type"], found) == ("stop", [8, 9, 10])


def test_a_pattern_that_backtracks_ends_its_own_request(tokenizer: Any) -> None:
    """Of this text Python's ``re`` tries 2^28 ways, and finds none."""
    req = request(tokenizer, max_new_tokens=99, stop_regex="(a+)+$")
    req.output_ids.extend(array("q", tokenizer("a" * 28 + "!")["input_ids"]))
    assert guard.check_request(lambda *_: None, req) is None
    assert not req._check_str_based_finish(len(req.output_ids))
    assert (req.finished_reason.status_code, "0.25 s" in req.finished_reason.message) == (400, True)


@pytest.mark.parametrize("letters", [2, 28], ids=["in time", "too long"])
def test_the_alarm_is_given_back(tokenizer: Any, letters: int) -> None:
    """What had it before has its handler and the rest of its time; ours does not come later."""
    req = request(tokenizer, max_new_tokens=99, stop_regex="(a+)+$")
    req.output_ids.extend(array("q", tokenizer("a" * letters + "!")["input_ids"]))
    before = signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, 60, 30)
    try:
        guard.check_request(lambda *_: None, req)
        req._check_str_based_finish(len(req.output_ids))
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert (signal.getsignal(signal.SIGALRM), interval) == (_raise_timeout, 30)
        assert 50 < left <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_sglang_matches_without_a_limit(tokenizer: Any) -> None:
    """Where it has one, our hook can go. The pattern of the test above, in a second of computing."""
    req = request(tokenizer, max_new_tokens=99, stop_regex="(a+)+$")
    req.output_ids.extend(array("q", tokenizer("a" * 60 + "!")["input_ids"]))
    before = signal.signal(signal.SIGVTALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1)
    try:
        with pytest.raises(TimeoutError):
            Req._check_str_based_finish(req, len(req.output_ids))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _raise_timeout(*_: object) -> NoReturn:
    raise TimeoutError


def test_processors_do_not_see_what_is_ours(tokenizer: Any) -> None:
    """Neither in ``custom_params`` nor in the text of the request that SGLang puts there; a client's own stay."""
    for own in ({}, {"budget": 3}):
        live = carry.Live()
        wires = {"embed": '{"pooling":"max"}', "inject": "vectors"}
        req = request(tokenizer, **carry.put({"custom_params": {**own}}, live, wires, **{carry.TAIL: 7}))
        found = state.of(req)
        assert (found.token, found.tail, found.rows) == (live.token, 7, True)
        assert found.requested == requested(embed=EmbedOptions(Pooling.MAX))
        assert found.wires == {"inject": "vectors"}
        assert state.of(req) is found
        assert live.token not in repr(req)
        assert "vectors" not in repr(req)
        assert "tessera" not in repr(req)
        shown = req.sampling_params.custom_params or {}
        assert {name: one for name, one in shown.items() if name != "__req__"} == own  # that name is SGLang's
    assert state.of(request(tokenizer)) is state.NOTHING
