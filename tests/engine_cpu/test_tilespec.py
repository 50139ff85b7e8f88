"""TileSpec on the CPU engine: whatever it decides, the tokens are those of greedy decoding in float32."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tessera.launching.server import Server
from tessera.tilespec.replay import replay
from tessera.tilespec.trace import Record, Trace
from tessera_testing.chances import sampled_as
from tessera_testing.drafts import CODE, TREE, chain, code_and_noise, drafting, retracting, write_reduced_head
from tessera_testing.endpoints import metrics
from tessera_testing.generate import generate
from tessera_testing.marks import only_in_full
from tessera_testing.pages import DOCS
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, relative_error, truncate
from tessera_testing.starts import RANKS_ON_CPUS, TWO_RANKS
from tessera_testing.tiny import TINY
from tessera_testing.waiting import wait_until

HIDDEN = "--enable-return-hidden-states"
GRAMMARS = ("--grammar-backend", "llguidance")  # the default one wants memory that a GPU can read
REGEX = "[a-z ]{3,12}[0-9]{2}"
SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}})
DICE = {"TESSERA_TEST_FAULT": "dice"}
SEED = ("--random-seed", "1")
LIKELIEST = ("--tile-spec-no-rejection-sampling",)
SERVERS = {
    "standalone": drafting("STANDALONE", chain(5)),
    "eagle": drafting("EAGLE", chain(5)),
    "eagle3": drafting("EAGLE3", chain(5)),
    "standalone-trees": drafting("STANDALONE", TREE),
    "eagle-trees": drafting("EAGLE", TREE),
    "eagle3-trees": drafting("EAGLE3", TREE),
    "eagle-likeliest-on-two-ranks": (*drafting("EAGLE", chain(5)), *LIKELIEST, *TWO_RANKS),
    "eagle-on-two-ranks": (*drafting("EAGLE", chain(5)), *TWO_RANKS),
}
ENDS = json.loads((TINY / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
IN_EVERY_RUN = ("standalone", "eagle3-trees")
FEW = "eagle3-few"
"""With a head that knows nine tenths of the target's tokens."""
METRICS = DOCS / "reference" / "metrics.md"
CHANCE = 1e-7
"""A p-value that what is right has once in ten million runs; what is wrong is six standard deviations beyond it."""
CHAIN_WIDTHS, TREE_WIDTHS = [1, 2, 3, 4, 6], [1, 2, 3, 4, 5, 6, 7, 8]
"""Tokens that some step verified of some request: of every number of steps; 5 tokens of a chain are only ever a cut."""


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of a server with such a head."""
    return drafting("EAGLE3", chain(5), write_reduced_head(tmp_path_factory.mktemp("reduced")))


@pytest.fixture(
    params=[*IN_EVERY_RUN, *only_in_full(*(name for name in (*SERVERS, FEW) if name not in IN_EVERY_RUN))],
)
def dice(request: pytest.FixtureRequest, server_pool: ServerPool, few: tuple[str, ...]) -> Server:
    """A server in which dice decide how much to draft and to verify, and which retracts requests."""
    options = few if request.param == FEW else SERVERS[request.param]
    ranks = RANKS_ON_CPUS if request.param.endswith("ranks") else {}
    spawned = request.param == "standalone"
    return server_pool.get(
        *options, "--tile-spec", HIDDEN, *GRAMMARS, *SEED, env=DICE | retracting(7) | ranks, spawned=spawned
    )


@pytest.fixture
def decoding(server_pool: ServerPool) -> Server:
    """SGLang without us and without drafts, with grammars."""
    return server_pool.get(*GRAMMARS, env={"TESSERA_DISABLE": "1"})


@pytest.mark.full
def test_one_request_at_a_time(server_pool: ServerPool, hf: HuggingFace) -> None:
    """What is measured at start fits into the room of one request."""
    server = server_pool.get(*SERVERS["eagle3-trees"], "--tile-spec", "--max-running-requests", "1")
    prompt = code_and_noise(hf.tokenizer, seed=1)[0]
    output = generate(server, prompt, 20)["output_ids"]
    assert output == hf.favourites([*prompt, *output[:-1]])[len(prompt) - 1 :]


def _padded(histogram: list[int]) -> list[int]:
    return histogram + [0] * (9 - len(histogram))


def test_dice_do_not_change_the_tokens(dice: Server, hf: HuggingFace, request: pytest.FixtureRequest) -> None:
    """Ragged and uniform verification, plain steps, requests that come, go, are aborted: each token is the reference's.

    While one that asks for log-probabilities runs, all logits are spread; else their arg-max alone.
    """
    chooser = random.Random(1)
    prompts = code_and_noise(hf.tokenizer, seed=1)
    tokens = [chooser.randrange(20, 60) for _ in prompts]
    with ThreadPoolExecutor(6) as threads:
        cut_off = threads.submit(generate, dice, prompts[0], 1500, rid="cut off")
        rows: dict[str, Any] = {"return_embedding": {"over": "all"}}
        requested = [rows | {"return_logprob": place == 2} for place in range(len(prompts))]
        work = list(zip(prompts, tokens, requested, strict=True))
        coming = threads.map(lambda item: generate(dice, *item[:2], **item[2]), work)
        answers = [next(coming)]

        def is_aborted() -> bool:
            httpx.post(f"{dice.url}/abort_request", json={"rid": "cut off"}, timeout=60).raise_for_status()
            return cut_off.done()

        wait_until(is_aborted)
        answers.extend(coming)
    assert cut_off.result()["meta_info"]["finish_reason"]["type"] == "abort"
    output = cut_off.result()["output_ids"]
    assert output == hf.favourites([*prompts[0], *output[:-1]])[len(prompts[0]) - 1 :]
    for prompt, answer in zip(prompts, answers, strict=True):
        output = answer["output_ids"]
        assert output == hf.favourites([*prompt, *output[:-1]])[len(prompt) - 1 :]
        assert relative_error(answer["meta_info"]["embedding"], hf.pooled(prompt, output, "mean", "all")) <= 1e-5
    metas = [answer["meta_info"] for answer in answers]
    assert sum(meta["spec_num_correct_drafts"] for meta in metas) > 20
    assert sum(meta["num_retractions"] for meta in metas) > 0
    for meta in metas:
        check_counts(meta)
    verified = np.sum([_padded(meta["spec_cap_lens_histogram"]) for meta in metas], axis=0)
    widths = TREE_WIDTHS if request.node.callspec.params["dice"].endswith("trees") else CHAIN_WIDTHS
    # Of some 180 verifications five or so have each of a tree's inner sizes: by luck one has none, or two.
    assert np.count_nonzero(verified[widths]) >= len(widths) - 2, verified
    assert (verified[[widths[0], widths[-1]]] > 0).all(), verified


@pytest.mark.parametrize(
    "dice",
    ["standalone", *only_in_full("eagle-on-two-ranks", "eagle-likeliest-on-two-ranks", FEW, "eagle3")],
    indirect=True,
)
def test_dice_do_not_change_what_is_sampled(dice: Server, hf: HuggingFace) -> None:
    """Each token has the target's distribution after those before it: 2,000 by temperature, 2,000 cut besides.

    Ragged and uniform verification and plain steps, with retraction, in batches of which some requests are greedy: a
    greedy token is the reference's; and some want log-probabilities, which are the reference's too. Negative controls:
    another temperature's is found, no cut, top-k alone, and top-p of the k likeliest, as in SGLang's speculation.
    """
    prompts = hf.tokenizer(CODE)["input_ids"] * 13
    kinds: list[dict[str, Any]] = [{"temperature": 0.9}, {"temperature": 1.1, "top_k": 8, "top_p": 0.3}]
    kinds.append({"temperature": 0})
    work = [(prompt, kind) for prompt in prompts for kind in kinds[: 3 if prompt is prompts[0] else 2]]
    wanted = [(*one, place % 8 == 0) for place, one in enumerate(work)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda one: generate(dice, one[0], 40, one[1], return_logprob=one[2]), wanted))
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 100
    warm, short, greedy = (
        [(prompt, answer["output_ids"]) for (prompt, kind), answer in zip(work, answers, strict=True) if kind is one]
        for one in kinds
    )
    assert sampled_as(warm, lambda ids: hf.probabilities(ids, 0.9)) > CHANCE
    assert sampled_as(warm, lambda ids: hf.probabilities(ids, 0.6)) < CHANCE
    assert sampled_as(short, lambda ids: hf.probabilities(ids, 1.1, 8, 0.3)) > CHANCE
    assert sampled_as(short, lambda ids: hf.probabilities(ids, 1.1)) < CHANCE
    assert sampled_as(short, lambda ids: hf.probabilities(ids, 1.1, 8)) < CHANCE
    assert sampled_as(short, lambda ids: truncate(hf.probabilities(ids, 1.1, 8), top_p=0.3)) < CHANCE
    for prompt, output in greedy:
        assert output == hf.favourites([*prompt, *output[:-1]])[len(prompt) - 1 :]
    for (prompt, kind, logged), answer in zip(wanted, answers, strict=True):
        if logged and kind is kinds[0]:
            output = answer["output_ids"]
            p = hf.probabilities([*prompt, *output[:-1]], 0.9)[len(prompt) - 1 :]
            found = [value for value, _, _ in answer["meta_info"]["output_token_logprobs"]]
            assert found == pytest.approx(np.log(p[range(len(output)), output]), abs=1e-3)


@pytest.mark.full
def test_drafts_that_are_sampled_are_right_more_often(server_pool: ServerPool, hf: HuggingFace) -> None:
    """At temperature 1 the target takes a draft's likeliest token less often than one that is drawn as its own are."""

    def right(name: str) -> float:
        env = DICE | retracting(7) | RANKS_ON_CPUS
        server = server_pool.get(*SERVERS[name], "--tile-spec", HIDDEN, *GRAMMARS, "--random-seed", "2", env=env)
        prompts = hf.tokenizer(CODE)["input_ids"] * 6
        with ThreadPoolExecutor(6) as threads:
            answers = threads.map(lambda prompt: generate(server, prompt, 60, {"temperature": 1.0}), prompts)
            metas = [answer["meta_info"] for answer in answers]
        accepted: int = sum(meta["spec_num_correct_drafts"] for meta in metas)
        verified: int = sum(meta["spec_verify_ct"] for meta in metas)
        return accepted / verified

    assert right("eagle-on-two-ranks") > 1.5 * right("eagle-likeliest-on-two-ranks")


GREEDY_PENALTIES: list[dict[str, Any]] = [
    {"frequency_penalty": 0.7},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.3},
    {"frequency_penalty": -0.2, "presence_penalty": 0.4, "repetition_penalty": 1.1},
    {"min_new_tokens": 30, "stop_token_ids": [4, 67, 87, 301], "ignore_eos": False},
    {},
]


@pytest.mark.parametrize(
    "dice", ["standalone", *only_in_full("eagle", "eagle3-trees", "standalone-trees")], indirect=True
)
def test_dice_do_not_change_penalties(dice: Server, hf: HuggingFace, request: pytest.FixtureRequest) -> None:
    """Each token is the reference's with what all tokens before it take off, in batches, and after retractions.

    Drafts are accepted all the same, but for trees. A least number of tokens counts tokens, not steps.
    """
    prompts = code_and_noise(hf.tokenizer, seed=5)
    work = [(prompt, kind) for prompt in prompts for kind in GREEDY_PENALTIES]
    # Of 10 tokens after the least number, trees have two right drafts in all prompts together: by luck none.
    limits = [100 if "min_new_tokens" in kind else 40 for _, kind in work]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda one, limit: generate(dice, one[0], limit, one[1]), work, limits))
    ended = 0
    for (prompt, kind), limit, answer in zip(work, limits, answers, strict=True):
        output = answer["output_ids"]
        expected = hf.penalized(prompt, output, **as_reference(kind)).argmax(1)
        assert output == expected.tolist(), kind
        stops = kind.get("stop_token_ids", [])
        assert not set(output[:-1]) & set(stops)
        if answer["meta_info"]["finish_reason"]["type"] == "stop":
            assert len(output) > 30
            ended += output[-1] in stops
        else:
            assert len(output) == limit
    assert ended > 1
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    right = [answer["meta_info"]["spec_num_correct_drafts"] for answer in answers]
    trees = request.node.callspec.params["dice"].endswith("trees")
    for place in range(len(GREEDY_PENALTIES)):
        assert (sum(right[place :: len(GREEDY_PENALTIES)]) > 0) != (trees and place < 4)


@pytest.mark.parametrize(
    "dice",
    ["standalone", *only_in_full("eagle-on-two-ranks", "eagle-likeliest-on-two-ranks", FEW)],
    indirect=True,
)
def test_dice_do_not_change_penalties_of_what_is_sampled(dice: Server, hf: HuggingFace) -> None:
    """1,000 tokens with penalties, and as many with min-p, lie where they should; without either they do not."""
    prompts = hf.tokenizer(CODE)["input_ids"] * 7
    requested = {"frequency_penalty": 1.5, "presence_penalty": 1.0, "repetition_penalty": 1.5, "min_new_tokens": 5}
    kinds: list[dict[str, Any]] = [{"temperature": 0.4, **requested, "stop_token_ids": [4]}]
    kinds += [{"temperature": 1.2, "min_p": 0.1}, {"temperature": 0, **requested}]
    work = [(prompt, kind) for place, prompt in enumerate(prompts) for kind in kinds[: 3 if place < 4 else 2]]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda one: generate(dice, one[0], 40, one[1]), work))
    penalized, likely, greedy = (
        [(prompt, answer["output_ids"]) for (prompt, kind), answer in zip(work, answers, strict=True) if kind is one]
        for one in kinds
    )

    def law(ids: list[int], **found: Any) -> Any:
        start = next(len(prompt) for prompt in prompts if ids[: len(prompt)] == prompt)
        scores = hf.penalized(ids[:start], [*ids[start:], 0], **found) / 0.4
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.vstack([np.full((start - 1, scores.shape[1]), np.nan), weights / weights.sum(axis=1, keepdims=True)])

    ours = as_reference(kinds[0])
    assert sampled_as(penalized, lambda ids: law(ids, **ours)) > CHANCE
    assert sampled_as(penalized, law) < CHANCE
    assert sampled_as(likely, lambda ids: hf.probabilities(ids, 1.2, min_p=0.1)) > CHANCE
    assert sampled_as(likely, lambda ids: hf.probabilities(ids, 1.2)) < CHANCE
    for prompt, output in greedy:
        assert output == hf.penalized(prompt, output, **as_reference(kinds[2])).argmax(1).tolist()


def as_reference(kind: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `HuggingFace.penalized`."""
    names = {"frequency_penalty": "frequency", "presence_penalty": "presence", "repetition_penalty": "repetition"}
    names |= {"min_new_tokens": "least"}
    barred = [*kind.get("stop_token_ids", []), *ENDS]
    return {"barred": barred} | {names[name]: value for name, value in kind.items() if name in names}


@pytest.mark.parametrize("dice", ["standalone", "eagle3-trees"], indirect=True)
def test_dice_keep_to_grammars(decoding: Server, dice: Server, hf: HuggingFace) -> None:
    """The tokens are those of stock SGLang, which decodes one by one, whether they must match something or not."""
    kinds: list[dict[str, Any]] = [{"regex": REGEX}, {"json_schema": SCHEMA}, {}]
    prompts = code_and_noise(hf.tokenizer, seed=3)
    work = [(prompt, {"ignore_eos": False, **kind}) for prompt in prompts for kind in kinds]
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda one: generate(dice, one[0], 40, one[1]), work))
    for (prompt, kind), answer in zip(work, found, strict=True):
        assert answer["output_ids"] == generate(decoding, prompt, 40, kind)["output_ids"]
    ended = [
        answer["text"]
        for (_, kind), answer in zip(work, found, strict=True)
        if "regex" in kind and answer["meta_info"]["finish_reason"]["type"] == "stop"
    ]
    assert len(ended) > 1
    assert all(re.fullmatch(REGEX, text) for text in ended)
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in found) > 20


@pytest.mark.parametrize(
    ("drafts", "drafted"), [("standalone", 5), pytest.param("standalone-trees", 7, marks=pytest.mark.full)]
)
def test_the_policy_is_in_force(
    server_pool: ServerPool, hf: HuggingFace, tmp_path: Path, drafts: str, drafted: int
) -> None:
    """By itself: drafts for one request, verifies less than all for many, and leaves a trace that can be replayed.

    A request whose prompt is three chunks decodes when the last one is through.
    """
    trace = tmp_path / "trace.jsonl"
    counted = ("--enable-metrics", "--tile-spec-trace", str(trace), "--chunked-prefill-size", "128")
    server = server_pool.get(*SERVERS[drafts], "--tile-spec", *counted)
    prompt = hf.tokenizer(CODE[1])["input_ids"]
    alone = generate(server, prompt, 100)
    assert alone["output_ids"] == hf.favourites([*prompt, *alone["output_ids"][:-1]])[len(prompt) - 1 :]
    assert alone["meta_info"]["spec_verify_ct"] < 60
    check_counts(alone["meta_info"])
    chooser = random.Random(2)
    noise = [[chooser.randrange(8, 1000) for _ in range(20)] for _ in range(20)]
    prompts = [*noise, *[[*ids[:4], *prompt] for ids in noise]]
    generate(server, prompts, 1)  # after their prompts nothing is left to decode
    generate(server, [chooser.randrange(8, 1000) for _ in range(300)], 8)
    for together in (prompts[12:28], prompts):  # in one body: how many run at once is not left to the clients' luck
        for ids, answer in zip(together, generate(server, together, 40), strict=True):
            output = answer["output_ids"]
            assert output == hf.favourites([*ids, *output[:-1]])[len(ids) - 1 :]
    records = list(Trace(trace).records())
    assert sum(record.new_requests for record in records) == 1 + 16 + len(prompts) + 1
    assert any(record.choice.steps == drafted and record.bs == 1 for record in records)
    assert any(0 < record.choice.tokens - record.bs < drafted * record.bs and record.bs > 8 for record in records)
    again = replay(Trace(trace))
    assert again.records == len(records)
    assert 0.3 < again.agreement.accepted / again.agreement.expected_accepted < 3
    generate(server, prompt, 2)  # what was counted is handed on before a prefill
    check_metrics(server, records)


def test_the_likeliest_nodes_are_verified(server_pool: ServerPool, hf: HuggingFace) -> None:
    """Half of each tree gives most of what whole ones give, which is 3.3 tokens a step; the wrong half gives 1.2."""
    server = server_pool.get(*SERVERS["standalone-trees"], "--tile-spec", env={"TESSERA_TEST_FAULT": "halves"})
    steps = 0
    for prompt in hf.tokenizer(CODE)["input_ids"]:
        answer = generate(server, prompt, 60)
        assert answer["output_ids"] == hf.favourites([*prompt, *answer["output_ids"][:-1]])[len(prompt) - 1 :]
        assert answer["meta_info"]["spec_cap_length"] == 4  # of 8, or it would be no half
        steps += answer["meta_info"]["spec_verify_ct"]
    assert 60 * len(CODE) / steps > 2.2


def check_counts(meta: dict[str, Any]) -> None:
    """Each step is counted with what it verified; every token but the anchors is a proposed draft."""
    verified, steps = meta["spec_cap_lens_histogram"], meta["spec_verify_ct"]
    tokens = sum(width * times for width, times in enumerate(verified))
    assert (verified[0], sum(verified)) == (0, steps)
    assert meta["spec_cap_length"] == tokens / steps
    assert meta["spec_num_proposed_drafts"] == tokens - steps
    assert meta.get("spec_proposed_drafts", tokens - steps) == tokens - steps  # its name up to 0.5.17, too
    assert meta["spec_accept_rate"] == meta["spec_num_correct_drafts"] / max(tokens - steps, 1)
    assert meta["spec_num_correct_drafts"] <= tokens - steps


def check_metrics(server: Server, records: list[Record]) -> None:
    """The counters say what the trace says, but for steps that are not written yet."""
    samples = metrics(server)
    ours = {s.name.removeprefix("tessera:tilespec_"): s for s in samples if "tessera:tilespec" in s.name}
    table = re.findall(r"^\| `tessera:tilespec_(\w+)`.*\| (.*?) \|$", METRICS.read_text(), re.MULTILINE)
    assert {name: {*sample.labels} - {"model_name"} for name, sample in ours.items()} == {
        name: {*re.findall(r"`(\w+)`", labels)} for name, labels in table
    }
    steps = [s for s in samples if s.name == "tessera:tilespec_steps_total"]
    assert 0 <= sum(s.value for s in steps) - len(records) <= 64
    traced = {(str(record.choice.steps), str(record.choice.tier or "all")) for record in records}
    series = {(s.labels["drafted"], s.labels["tier"]) for s in steps}
    assert traced <= series
    drafted, tiers = ({pair[i] for pair in series} for i in (0, 1))
    assert series == {(d, t) for d in drafted for t in tiers if d != "0" or t == "all"}  # also those never chosen
    assert ours["verified_tokens_total"].value >= len(records) / 2
    accepted = sum(record.accepted for record in records if record.accepted is not None)
    assert 0 < accepted <= ours["accepted_drafts_total"].value
    assert ours["expected_drafts_total"].value > 0
    assert ours["expected_seconds_total"].value > 0
    assert ours["measured_seconds_total"].value > 0
