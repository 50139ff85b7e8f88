"""Weights change while a server runs, call by call as RL libraries change them.

After each loop embeddings are Hugging Face's with the new weights, fingerprints are verified, and a claim of the old
weights fails. The server makes fingerprints of every answer, so a request that asks for nothing needs its rows too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tessera.launching.ports import port_of, reserve_port
from tessera.launching.server import Server
from tessera_testing.claims import FINGERPRINTS, claim_of, generate_with_fingerprints, post, verdicts
from tessera_testing.endpoints import flush_cache, metrics
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.tiny import TINY
from tessera_testing.waiting import wait_until
from tessera_testing.weights import with_other_weights

FLOAT32_ERROR = 1e-5
LONG = 300
"""Tokens of an answer that still runs when the server is paused."""
MANY = 16
"""Requests that run together: fingerprints of so many are read while they run."""
Fields = dict[str, Any]
ALL: Fields = {"return_embedding": {"over": "all"}, "return_input_ids": True}
WHY = "rows_unavailable"
CHANGED = "weights_changed: the weights changed during this request"


class Model(NamedTuple):
    """Weights that a trainer sends, and what Hugging Face computes with them."""

    path: Path
    hf: HuggingFace

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """By name."""
        return list(load_file(self.path / "model.safetensors").items())


@pytest.fixture
def training(server_pool: ServerPool) -> Iterator[Server]:
    """A server that fingerprints every answer and counts; it gets back the weights with which it started."""
    options = ("--enable-metrics", "--skip-tokenizer-init", "--enable-streaming-session")
    server = server_pool.get("--toploc-verification", *options)
    yield server
    call(server, "/continue_generation", {})
    call(server, "/abort_request", {"abort_all": True})
    flush_cache(server)
    call(server, "/update_weights_from_disk", {"model_path": str(TINY)})


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The next policy."""
    path = with_other_weights(tmp_path_factory.mktemp("new"))
    return Model(path, HuggingFace(path))


@pytest.fixture
def old_claim(training: Server) -> Any:
    """What the server answers before its weights change."""
    return claim_of(generate_with_fingerprints(training, prompt_of(30), 40))


def prompt_of(length: int) -> list[int]:
    """One that no other request had."""
    prompt_of.seed += 1  # type: ignore[attr-defined]
    return fresh_prompt("rl", length, prompt_of.seed)  # type: ignore[attr-defined]


prompt_of.seed = 0  # type: ignore[attr-defined]


def call(server: Server, path: str, body: Any) -> Any:
    """One of the loop's calls, which succeeds."""
    answer = post(server, path, body)
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer


@contextmanager
def announced(server: Server) -> Iterator[bool]:
    """An update by tensors or a group: versions of SGLang that have the routes take it between them alone."""
    supported = httpx.post(f"{server.url}/begin_weight_update", json={}, timeout=60).status_code == httpx.codes.OK
    yield supported
    if supported:
        call(server, "/end_weight_update", {})


def running(server: Server) -> int:
    """Requests in the running batch, as slime asks."""
    loads = httpx.get(f"{server.url}/v1/loads?include=core,disagg,queues", timeout=60).raise_for_status().json()
    return sum(load["num_running_reqs"] for load in loads["loads"])


def check_embedding(model: HuggingFace, prompt: list[int], answer: Any) -> None:
    """Over all its rows; with the ids that the answer has."""
    expected = model.pooled(prompt, answer["output_ids"], "mean", "all")
    assert relative_error(answer["meta_info"]["embedding"], expected) <= FLOAT32_ERROR


def check_policy(server: Server, model: HuggingFace, old_claim: Any) -> None:
    """Good requests last: rows and fingerprints are those of the policy that is served now."""
    prompt = prompt_of(50)
    for _ in range(2):  # computed, then cached
        answer = generate(server, prompt, 40, return_embedding={"over": "all"}, return_input_ids=True)
        check_embedding(model, prompt, answer)
        meta = answer["meta_info"] | {"output_ids": answer["output_ids"]}
        assert verdicts(server, claim_of(meta), old_claim) == ["pass", "fail"]


def all_run(server: Server, sent: list[Future[list[Any]]], count: int) -> bool:
    """Whether so many requests were seen to run before one of these had ended.

    Raises:
        TimeoutError: neither came.
    """
    seen = False

    def seen_or_ended() -> bool:
        nonlocal seen
        ended = any(request.done() for request in sent)
        seen = not ended and running(server) >= count
        return seen or ended

    wait_until(seen_or_ended)
    return seen


def ended(sent: Future[list[Any]]) -> bool:
    """Whether all tokens of one of these answers had come before anything could end it."""
    reasons = [answer["meta_info"]["finish_reason"]["type"] for answer in sent.result()] if sent.done() else []
    return "length" in reasons


@contextmanager
def paused(
    server: Server, mode: str | None, *bodies: Fields, count: int = 1, sampling: Fields | None = None
) -> Iterator[tuple[list[int], list[Future[list[Any]]]]]:
    """Pause while long requests for log-probabilities run: a prompt ``count`` times in each body, answers of each."""
    prompt = prompt_of(40)
    with ThreadPoolExecutor(len(bodies)) as pool:

        def send(body: Fields) -> Future[list[Any]]:
            return pool.submit(generate, server, [prompt] * count, LONG, sampling, return_logprob=True, **body)

        for _ in range(10):  # on a busy machine they may have ended before anybody looked
            sent = [send(body) for body in bodies]
            if all_run(server, sent, min(count * len(bodies), MANY)):
                call(server, "/pause_generation", {} if mode is None else {"mode": mode})
                if not any(ended(one) for one in sent):
                    yield prompt, sent
                    return
                call(server, "/continue_generation", {})
    pytest.fail("no request was seen to run")


def test_an_update_that_fails_changes_nothing(training: Server, hf: HuggingFace, old_claim: Any) -> None:
    """400, and not a row or prefix is lost: not of cached prompts, not of those that run."""
    prompt = prompt_of(40)
    generate(training, prompt, 4)
    with paused(training, "in_place", {"return_embedding": {"over": "all"}}) as (long, (sent,)):
        failed = post(training, "/update_weights_from_disk", {"model_path": "/nonexistent", "flush_cache": False})
        assert failed.status_code == httpx.codes.BAD_REQUEST
        call(training, "/continue_generation", {})
    check_embedding(hf, long, sent.result()[0])
    answer = generate(training, prompt, 4, return_embedding={"over": "all"})
    assert answer["meta_info"]["cached_tokens"] == len(prompt) - 1
    check_embedding(hf, prompt, answer)
    assert verdicts(training, old_claim) == ["pass"]


def test_prefixes_without_rows_are_computed_again(training: Server, hf: HuggingFace, new: Model) -> None:
    """For whoever needs their rows; others find SGLang's cache as it was. After a flush all share it again."""
    prompt = prompt_of(40)
    plain: dict[str, Any] = {"return_toploc_fingerprints": False}
    generate(training, prompt, 4)
    call(training, "/update_weights_from_disk", {"model_path": str(new.path), "flush_cache": False})
    assert generate(training, prompt, 4, **plain)["meta_info"]["cached_tokens"] == len(prompt) - 1
    for cached in (0, len(prompt) - 1):
        answer = generate(training, prompt, 4, return_embedding={"over": "all"})
        assert answer["meta_info"]["cached_tokens"] == cached
        check_embedding(new.hf, prompt, answer)
    encode = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}, "return_embedding": True}
    vector = call(training, "/generate", encode).json()["meta_info"]["embedding"]
    assert relative_error(vector, new.hf.pooled(prompt, [], "mean", "prompt")) <= FLOAT32_ERROR

    call(training, "/update_weights_from_disk", {"model_path": str(TINY), "flush_cache": False})
    vector = call(training, "/generate", encode).json()["meta_info"]["embedding"]
    assert relative_error(vector, hf.pooled(prompt, [], "mean", "prompt")) <= FLOAT32_ERROR
    flush_cache(training)
    generate(training, prompt, 4, **plain)
    answer = generate(training, prompt, 4, return_embedding={"over": "all"})
    assert answer["meta_info"]["cached_tokens"] == len(prompt) - 1
    check_embedding(hf, prompt, answer)


def test_a_session_that_keeps_older_rows(training: Server, new: Model) -> None:
    """Its turns have no rows until the slots that it kept are flushed; then the conversation is computed again."""
    opened = {"capacity_of_str_len": 1000, "streaming": True}
    session = call(training, "/open_session", opened).json()
    requested: dict[str, Any] = {"session_params": {"id": session}, "return_embedding": {"over": "all"}}
    said = []
    for number in range(3):
        added = prompt_of(20)
        answer = generate(training, added, 4, **requested, return_input_ids=True)
        if number == 0:
            call(training, "/update_weights_from_disk", {"model_path": str(new.path), "flush_cache": False})
        if number == 1:
            assert answer["meta_info"]["embedding"] is None
            assert "weights" in answer["meta_info"]["rows_unavailable"]
            flush_cache(training)
        said += added
        assert answer["meta_info"]["input_ids"] == said
        if number == 2:
            check_embedding(new.hf, said, answer)
        said += answer["output_ids"]
    call(training, "/close_session", {"session_id": session})


def unavailable(server: Server) -> float:
    """Answers that the metric counts."""
    found = [sample for sample in metrics(server) if sample.name == "tessera:rows_unavailable_total"]
    return sum(sample.value for sample in found if sample.labels["code"] == "weights_changed")


def test_answers_survive_weights_that_change_in_place(training: Server, new: Model, old_claim: Any) -> None:
    """All tokens and log-probabilities, as on stock; null, the reason, and a count for what nobody can vouch for."""
    before = unavailable(training)
    requested = {"return_embedding": {"over": "all"}, "return_hidden_states": True}
    with paused(training, "in_place", {}, requested) as (_, (silent, reading)):
        call(training, "/update_weights_from_disk", {"model_path": str(new.path), "flush_cache": False})
        call(training, "/continue_generation", {})
    for request in (silent, reading):
        (answer,) = request.result()
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": LONG}
        assert len(answer["output_ids"]) == len(answer["meta_info"]["output_token_logprobs"]) == LONG
        assert answer["meta_info"][FINGERPRINTS] is None
        assert answer["meta_info"][WHY] == CHANGED
    assert "embedding" not in silent.result()[0]["meta_info"]
    meta = reading.result()[0]["meta_info"]
    assert (meta["embedding"], meta["embedding_tokens"], meta["hidden_states"]) == (None, 0, None)
    assert unavailable(training) == before + 2
    check_policy(training, new.hf, old_claim)


def test_rows_that_were_computed_again_count(training: Server, new: Model, old_claim: Any) -> None:
    """A retracted request is prefilled with the new weights, tokens of the old ones included: so are its rows.

    As on stock: up to 0.5.17 nothing can be flushed while it waits.
    """
    with paused(training, "retract", ALL, count=20) as (prompt, (sent,)):
        assert post(training, "/flush_cache", {}).status_code in {httpx.codes.OK, httpx.codes.BAD_REQUEST}
        call(training, "/update_weights_from_disk", {"model_path": str(new.path), "flush_cache": False})
        call(training, "/continue_generation", {})
    for answer in sent.result():
        check_embedding(new.hf, prompt, answer)
        meta = answer["meta_info"] | {"output_ids": answer["output_ids"]}
        assert verdicts(training, claim_of(meta)) == ["pass"]
    check_policy(training, new.hf, old_claim)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_stream_ends_without_its_last_fingerprints(training: Server, new: Model, old_claim: Any, mode: str) -> None:
    """Those that it sent are of the old weights, and none of the new ones follow; every chunk comes in time."""
    length = 3 * LONG  # it must still run when the pause comes
    sampling = {"max_new_tokens": length, "ignore_eos": True}
    body = {"input_ids": prompt_of(40), "sampling_params": sampling, "stream": True}
    found: list[Any] = []
    with httpx.stream("POST", f"{training.url}/generate", json=body, timeout=120) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
        found.append(json.loads(next(lines))["meta_info"])
        call(training, "/pause_generation", {"mode": mode})
        call(training, "/update_weights_from_disk", {"model_path": str(new.path), "flush_cache": False})
        call(training, "/continue_generation", {})
        found += [json.loads(line)["meta_info"] for line in lines]
    assert len(found[0][FINGERPRINTS]) == 1
    assert found[-1]["finish_reason"]["type"] == "length"
    assert found[-1]["completion_tokens"] == length
    assert (found[-1][FINGERPRINTS], found[-1][WHY]) == (None, CHANGED)
    check_policy(training, new.hf, old_claim)


def test_areal(training: Server, hf: HuggingFace, new: Model, old_claim: Any) -> None:
    """Pause, update from disk, continue, the same prompt with the tokens kept: it trains on the aborted answer too."""
    with paused(training, None, ALL | {"image_data": None}) as (prompt, (sent,)):
        update = {"model_path": str(new.path), "abort_all_requests": True}
        call(training, "/update_weights_from_disk", update)
        call(training, "/continue_generation", {})
        (partial,) = sent.result()
    output_ids = partial["output_ids"]
    assert partial["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(partial["meta_info"]["output_token_logprobs"]) == len(output_ids) < LONG
    check_embedding(hf, prompt, partial)
    answer = generate(training, [*prompt, *output_ids], 10, return_embedding={"over": "all"})
    check_embedding(new.hf, [*prompt, *output_ids], answer)
    check_policy(training, new.hf, old_claim)
    call(training, "/update_weights_from_disk", {"model_path": str(TINY)})
    meta = partial["meta_info"] | {"output_ids": output_ids}
    assert verdicts(training, claim_of(meta)) == ["pass"]


def test_slime_aborts(training: Server, hf: HuggingFace) -> None:
    """All at once, those that wait too; with parameters of slime's own. What has rows has what they give."""
    extra = {"custom_params": {"return_top_p_token_ids": True}, "no_stop_trim": True, "skip_special_tokens": False}
    with paused(training, "in_place", ALL, count=3, sampling=extra) as (prompt, (sent,)):
        call(training, "/continue_generation", {})
        call(training, "/abort_request", {"rid": "", "abort_all": True})
    claims = []
    for answer in sent.result():
        meta = answer["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        if meta.get(WHY) is None:
            assert len(meta["output_token_logprobs"]) == len(answer["output_ids"])
            check_embedding(hf, prompt, answer)
            claims.append(claim_of(meta | {"output_ids": answer["output_ids"]}))
    assert verdicts(training, *claims) == ["pass"] * len(claims)
    assert claims
    for path in ("/get_server_info", "/health_generate"):
        httpx.get(training.url + path, timeout=60).raise_for_status()
    prompt = prompt_of(20)
    full = generate(training, prompt, 8)["output_ids"]
    stop = {"stop_token_ids": [full[4]], "no_stop_trim": True, "ignore_eos": False}
    answer = generate(training, prompt, 8, stop, return_embedding={"over": "all"})
    assert answer["output_ids"] == full[: full.index(full[4]) + 1]
    check_embedding(hf, prompt, answer)


def test_aborted_while_it_waits(training: Server, hf: HuggingFace, old_claim: Any) -> None:
    """A retracted request has no rows: null, and why. Its tokens are those that SGLang had sent on, as on stock."""
    with paused(training, "retract", {"return_embedding": True}) as (_, (sent,)):
        call(training, "/abort_request", {"abort_all": True})
        call(training, "/continue_generation", {})
        meta = sent.result()[0]["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert (meta["embedding"], meta[FINGERPRINTS]) == (None, None)
    assert meta[WHY].startswith("request_aborted: ")
    prompt = prompt_of(30)
    check_embedding(hf, prompt, generate(training, prompt, 4, return_embedding={"over": "all"}))
    assert verdicts(training, old_claim) == ["pass"]


def test_distributed(training: Server, new: Model, old_claim: Any) -> None:
    """AReaL and slime: a group with the trainer, two lots of tensors, flush, destroy."""
    from sglang.srt.utils import init_custom_process_group

    with reserve_port() as held:
        port = port_of(held)
    group = {"group_name": "trainer", "backend": "gloo", "world_size": 2}
    with ThreadPoolExecutor(1) as pool:
        place = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1}
        joining = pool.submit(call, training, "/init_weights_update_group", {**place, **group})
        trainer = init_custom_process_group(
            backend="gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=0, group_name="trainer"
        )
        joining.result()
        call(training, "/pause_generation", {})
        tensors = new.tensors()
        with announced(training):
            for lot in (tensors[::2], tensors[1::2]):
                body = {
                    "names": [name for name, _ in lot],
                    "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in lot],
                    "shapes": [list(tensor.shape) for _, tensor in lot],
                    "group_name": "trainer",
                    "flush_cache": False,
                }
                updating = pool.submit(call, training, "/update_weights_from_distributed", body)
                for _, tensor in lot:
                    torch.distributed.broadcast(tensor, src=0, group=trainer)
                updating.result()
        httpx.get(f"{training.url}/flush_cache", timeout=60).raise_for_status()
        call(training, "/continue_generation", {})
        call(training, "/destroy_weights_update_group", {"group_name": "trainer"})
    check_policy(training, new.hf, old_claim)


def send_tensors(server: Server, model: Model, buckets: int) -> None:
    """As slime and verl do: each bucket one flat tensor, nothing flushed, the version with the last."""
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    torch.multiprocessing.set_sharing_strategy("file_system")  # the server is no child of this process
    tensors = model.tensors()
    with announced(server):
        for i in range(buckets):
            bucket = FlattenedTensorBucket(named_tensors=tensors[i::buckets])
            flat = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
            body = {
                "serialized_named_tensors": [MultiprocessingSerializer.serialize(flat, output_str=True)],
                "load_format": "flattened_bucket",
                "flush_cache": False,
                **({"weight_version": "7"} if i == buckets - 1 else {}),
            }
            call(server, "/update_weights_from_tensor", body)


def test_an_update_in_which_nothing_arrives(training: Server, hf: HuggingFace) -> None:
    """Its begin and its end forget rows, each alone: another machine may write weights before, between and after."""
    prompt = prompt_of(40)
    encode = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}, "return_embedding": True}

    def cached() -> int:
        meta = call(training, "/generate", encode).json()["meta_info"]
        assert relative_error(meta["embedding"], hf.pooled(prompt, [], "mean", "prompt")) <= FLOAT32_ERROR
        return int(meta["cached_tokens"])

    assert [cached(), cached()] == [0, 40]
    with announced(training) as supported:
        if not supported:
            pytest.skip("this SGLang has no such routes")
        assert [cached(), cached()] == [0, 40]
    assert [cached(), cached()] == [0, 40]


def test_tensors_in_buckets(training: Server, new: Model, old_claim: Any) -> None:
    """Slime: pause, flush, three buckets, flush, continue; answers name the version."""
    call(training, "/pause_generation", {})
    httpx.get(f"{training.url}/flush_cache", timeout=60).raise_for_status()
    send_tensors(training, new, 3)
    httpx.get(f"{training.url}/flush_cache", timeout=60).raise_for_status()
    call(training, "/continue_generation", {})
    assert generate(training, prompt_of(8), 1)["meta_info"]["weight_version"] == "7"
    check_policy(training, new.hf, old_claim)


def test_verl(training: Server, new: Model, old_claim: Any) -> None:
    """Memory is released and resumed by tags, the weights come in between."""
    call(training, "/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    call(training, "/resume_memory_occupation", {"tags": ["weights"]})
    send_tensors(training, new, 2)
    call(training, "/resume_memory_occupation", {"tags": ["kv_cache"]})
    flush_cache(training)
    check_policy(training, new.hf, old_claim)


def test_verls_teacher(training: Server, hf: HuggingFace) -> None:
    """Log-probabilities of a whole text, none generated: the reference's; its embedding beside them."""
    ids = prompt_of(60)
    fields: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "return_embedding": True}
    for _ in range(2):
        meta = generate(training, ids, 0, **fields)["meta_info"]
        found = np.array([entry[0] for entry in meta["input_token_logprobs"][1:]])
        assert np.abs(found - hf.logprobs(ids, lambda embeds: embeds)).max() < 1e-3
        assert relative_error(meta["embedding"], hf.pooled(ids, [], "mean", "prompt")) <= FLOAT32_ERROR
        assert len(meta[FINGERPRINTS]) == 1
