"""The client library: the same tests against the real server and against the model in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import httpx
import numpy as np
import pytest

from tessera.cli import main
from tessera.client import (
    AsyncClient,
    Claim,
    Client,
    HiddenStatesUnsupported,
    Inference,
    Injection,
    LocalClient,
    RequestRefused,
    Unsupported,
    connect,
)
from tessera.client.check import checks
from tessera.client.extract import first_line
from tessera.client.options import GenerateWithEmbeddingOptions, Prompt, SamplingOptions
from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, Vector, relative_error
from tessera_testing.tiny import TINY

FLOAT32_ERROR = 1e-5
PROMPT = "class Stack:\n    def __init__(self):\n"
TEXTS = ["import os", "def add(a, b):\n    return a + b\n", "x = 'ünï ⊢ 漢'", "class Stack:\n    pass\n"]
SEVERAL = 7


@pytest.fixture(scope="module")
def local() -> Iterator[Inference]:
    """The model in this process."""
    with connect(TINY) as client:
        yield client


@pytest.fixture(params=["server", "local"])
def client(request: pytest.FixtureRequest) -> Iterator[Inference]:
    """Each client in turn, by the one function that picks."""
    if request.param == "local":
        yield request.getfixturevalue("local")
        return
    with connect(request.getfixturevalue("server").url) as remote:
        yield remote


def mean(hf: HuggingFace, text: str) -> Vector:
    """The mean over the text's tokens."""
    return hf.pooled(hf.tokenizer(text)["input_ids"], [], "mean", "prompt")


def greedy(hf: HuggingFace, prompt: str, tokens: int) -> list[int]:
    """What the reference continues with, whether it is an end or not."""
    ids = list(hf.tokenizer(prompt)["input_ids"])
    for _ in range(tokens):
        ids.append(int(np.argmax(hf.states(ids)[-1] @ head(hf))))
    return ids[-tokens:]


def head(hf: HuggingFace) -> Vector:
    """The output head ``[H, V]``, which is tied to the embeddings."""
    weights: Vector = hf._model.get_input_embeddings().weight.detach().double().numpy().T
    return weights


def test_connect_picks(client: Inference, request: pytest.FixtureRequest) -> None:
    """A URL gives the remote client, a folder the local one; both say who answers."""
    remote = request.node.callspec.params["client"] == "server"
    assert isinstance(client, Client if remote else LocalClient)
    info = client.server_info()
    assert info.model == str(TINY)
    assert info.engine.startswith("sglang 0.5" if remote else "transformers ")
    assert "rows" in info.features


def test_generate(client: Inference, hf: HuggingFace) -> None:
    """Greedy text and its log-probabilities, from text and from token ids."""
    expected = greedy(hf, PROMPT, 24)
    found = client.generate(PROMPT, max_new_tokens=24, temperature=0, ignore_eos=True, logprobs=True)
    assert found.output_ids == tuple(expected)
    assert found.text == hf.tokenizer.decode(expected)
    assert (found.finish_reason, found.prompt_tokens) == ("length", len(hf.tokenizer(PROMPT)["input_ids"]))
    assert found.token_logprobs is not None
    assert found.log_prob == pytest.approx(log_prob(hf, PROMPT, expected), rel=1e-4)
    again = client.generate(hf.tokenizer(PROMPT)["input_ids"], max_new_tokens=24, temperature=0, ignore_eos=True)
    assert (again.text, again.log_prob, again.embedding, again.numpy()) == (found.text, None, None, None)


def log_prob(hf: HuggingFace, prompt: str, output: Sequence[int], temperature: float = 1.0) -> float:
    """Of the whole output, by the reference's states and the tied output head."""
    ids = hf.tokenizer(prompt)["input_ids"]
    states = hf.states([*ids, *output[:-1]])[len(ids) - 1 :]
    logits = states @ head(hf) / temperature
    normalized = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return float(sum(normalized[i, token] for i, token in enumerate(output)))


def test_stop(client: Inference) -> None:
    """A text that ends at a stop does not hold it."""
    found = client.generate("import os\nimport sys\nimport ", max_new_tokens=20, temperature=0, stop="\n")
    assert found.finish_reason == "stop"
    assert found.text
    assert "\n" not in found.text


def test_generate_with_embedding(client: Inference, hf: HuggingFace) -> None:
    """One request, both results; the vector is that of its own tokens."""
    ids = hf.tokenizer(PROMPT)["input_ids"]
    requested: list[GenerateWithEmbeddingOptions] = [
        {},
        {"over": "all", "pooling": "max"},
        {"over": "output", "pooling": "last", "normalize": True},
    ]
    for options in requested:
        options |= {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
        found = client.generate_with_embedding(PROMPT, **options)
        over, pooling = options.get("over", "prompt"), options.get("pooling", "mean")
        expected = hf.pooled(ids, found.output_ids, pooling, over)
        expected = expected / np.linalg.norm(expected) if options.get("normalize") else expected
        assert found.embedding is not None
        assert relative_error(found.embedding.numpy(), expected) <= FLOAT32_ERROR
        assert found.embedding.tokens == {"mean": len(ids), "max": len(ids) + 5, "last": 1}[pooling]
        assert len(found.output_ids) == 6


def test_hidden_states(client: Inference, hf: HuggingFace) -> None:
    """All rows, and chosen ones; the probe says that they are right."""
    ids = hf.tokenizer(PROMPT)["input_ids"]
    found = client.generate(PROMPT, max_new_tokens=4, temperature=0, hidden_states=True, ignore_eos=True)
    expected = hf.states([*ids, *found.output_ids[:-1]])
    rows = found.numpy()
    assert rows is not None
    assert rows.shape == expected.shape
    assert relative_error(rows, expected) <= FLOAT32_ERROR
    chosen = client.generate(PROMPT, max_new_tokens=1, temperature=0, hidden_states={"positions": [3, 0]}).numpy()
    assert chosen is not None
    assert relative_error(chosen, expected[[3, 0]]) <= FLOAT32_ERROR
    assert client.supports_hidden_states() is True


MESSAGES = [
    {"role": "user", "content": TEXTS[1]},
    {"role": "assistant", "content": "x"},
    {"role": "user", "content": "y"},
]


def rendered(hf: HuggingFace, *, answer: bool) -> list[int]:
    """The chat's tokens, by the reference's template."""
    ids: list[int] = hf.tokenizer.apply_chat_template(
        MESSAGES, tokenize=True, add_generation_prompt=answer, return_dict=False
    )
    return ids


def test_chat(server: Server, hf: HuggingFace) -> None:
    """The model's own answer to the rendered chat, and with it all that a generation has; a chat is embedded, too."""
    ids = rendered(hf, answer=True)
    fixed: SamplingOptions = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    with connect(server.url) as client:
        found = client.chat(MESSAGES, **fixed, logprobs=True, hidden_states=True, fingerprints=True, embedding=True)
        plain = client.generate(ids, max_new_tokens=6, temperature=0, ignore_eos=True, logprobs=True)
        assert (found.text, found.output_ids, found.input_ids) == (plain.text, plain.output_ids, tuple(ids))
        assert (found.finish_reason, found.prompt_tokens) == ("length", len(ids))
        assert found.log_prob == pytest.approx(plain.log_prob, rel=1e-4)
        expected = hf.states([*ids, *found.output_ids[:-1]])
        assert found.hidden_states is not None
        assert relative_error(found.hidden_states, expected) <= FLOAT32_ERROR
        assert found.embedding is not None
        assert relative_error(found.embedding.numpy(), hf.pooled(ids, [], "mean", "prompt")) <= FLOAT32_ERROR
        assert client.verify([Claim.of(found)])[0]
        other = client.chat(MESSAGES, **fixed, embedding={"over": "output", "pooling": "last"})
        assert other.embedding is not None
        last = hf.pooled(ids, found.output_ids, "last", "output")
        assert relative_error(other.embedding.numpy(), last) <= FLOAT32_ERROR
        assert (other.hidden_states, other.fingerprints, other.log_prob) == (None, None, None)
        chat = hf.pooled(rendered(hf, answer=False), [], "mean", "prompt")
        assert relative_error(client.encode(MESSAGES).numpy(), chat) <= FLOAT32_ERROR
        with pytest.raises(RequestRefused):
            client.chat([])


def test_stream(client: Inference) -> None:
    """The pieces together are the whole."""
    whole = client.generate(PROMPT, max_new_tokens=30, temperature=0, logprobs=True)
    pieces = list(client.stream(PROMPT, max_new_tokens=30, temperature=0, logprobs=True))
    assert len(pieces) > SEVERAL
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum((piece.output_ids for piece in pieces), ()) == whole.output_ids
    assert [piece.final for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    final = pieces[-1].final
    assert final is not None
    assert final.text == whole.text
    assert final.log_prob == pytest.approx(whole.log_prob, abs=1e-4)


def test_candidates(client: Inference, hf: HuggingFace) -> None:
    """Of each prompt its own, each text once, the most probable first, with the log-probabilities of the reference."""
    prompts = ["a", PROMPT + "        self.", "def add(a, b):\n    return "]  # eight are never all the same
    groups = client.generate_candidates_batch(prompts, 8, max_new_tokens=8, extract=first_line, ignore_eos=True)
    assert len(groups) == len(prompts)
    for prompt, group in zip(prompts, groups, strict=True):
        assert 1 < len(group) <= 8
        assert len({candidate.text for candidate in group}) == len(group)
        assert [c.log_prob for c in group] == sorted((c.log_prob for c in group), reverse=True)
        for candidate in group:
            assert candidate.text == first_line(candidate.raw)
            assert candidate.raw == hf.tokenizer.decode(candidate.output_ids, skip_special_tokens=True)
            assert candidate.log_prob == pytest.approx(log_prob(hf, prompt, candidate.output_ids, 0.6), rel=1e-3)
    single = client.generate_candidates(prompts[0], 4, temperature=0, max_new_tokens=5, ignore_eos=True)
    assert [candidate.output_ids for candidate in single] == [tuple(greedy(hf, prompts[0], 5))]
    assert client.generate_candidates_batch([], 8) == []


def test_encode(client: Inference, hf: HuggingFace) -> None:
    """One text, by each option."""
    text = TEXTS[1]
    found = client.encode(text)
    assert relative_error(found.numpy(), mean(hf, text)) <= FLOAT32_ERROR
    assert found.tokens == len(hf.tokenizer(text)["input_ids"])
    ids = hf.tokenizer(text)["input_ids"]
    shortened = hf.pooled(ids, [], "last", "prompt")[:32]
    for given in (text, ids):
        other = client.encode(given, pooling="last", dimensions=32, normalize=True)
        assert relative_error(other.numpy(), shortened / np.linalg.norm(shortened)) <= FLOAT32_ERROR


def test_encode_batch(
    client: Inference, hf: HuggingFace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More texts than go into one request come back in their order; the bar reaches the end."""
    monkeypatch.setattr("tessera.client.chunks.CHUNK", SEVERAL)
    texts = [f"{TEXTS[i % len(TEXTS)]}  # {i * i}" for i in range(5 * SEVERAL + 2)]
    found = client.encode_batch(texts, progress=True)
    assert found.numpy().shape == (len(texts), 256)
    assert found.prompt_tokens == sum(len(hf.tokenizer(text)["input_ids"]) for text in texts)
    for vector, text in zip(found, texts, strict=True):
        assert relative_error(vector, mean(hf, text)) <= FLOAT32_ERROR
    assert capsys.readouterr().err.rstrip().split("\r")[-1].startswith(f"encode [{'#' * 30}] {len(texts)}/{len(texts)}")
    assert len(client.encode_batch([])) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda client: client.encode(""),
        lambda client: client.encode("a", dimensions=257),
        lambda client: client.encode("a", pooling="median"),
        lambda client: client.encode([1024]),
        lambda client: client.encode_batch(["a", ""]),
        lambda client: client.generate([9] * 5000),
        lambda client: client.generate("a", hidden_states={"positions": [10_000]}, max_new_tokens=1),
    ],
)
def test_wrong_values_are_refused(client: Inference, wrong: Callable[[Inference], object]) -> None:
    """At once, with the status of a wrong request, whoever looks at them."""
    with pytest.raises(RequestRefused) as refused:
        wrong(client)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda client: client.generate("a", max_tokens=3), TypeError),
        (lambda client: client.encode("a", pool="mean"), TypeError),
        (lambda client: client.chat(MESSAGES, over="all"), TypeError),
        (lambda client: client.generate_candidates("a", 2, stream=True), TypeError),
        (lambda client: client.generate_candidates("a", 0), ValueError),
    ],
)
def test_wrong_calls(client: Inference, wrong: Callable[[Inference], object], kind: type[Exception]) -> None:
    """An option that no method has is an error, not something that a server overlooks."""
    with pytest.raises(kind):
        wrong(client)


@pytest.mark.parametrize("wrong", ["", "a" * 9_000, [9] * 5_000, [7, 1024]])
def test_the_item_that_is_wrong_is_named(server: Server, monkeypatch: pytest.MonkeyPatch, wrong: Prompt) -> None:
    """By its place in the caller's list, whatever request it went in; an empty one, a long one, a strange one."""
    monkeypatch.setattr("tessera.client.chunks.CHUNK", SEVERAL)
    good: Prompt = "a" if isinstance(wrong, str) else [9]

    async def many(items: list[Prompt]) -> object:
        async with AsyncClient(server.url) as client:
            return await client.encode_batch(items)

    items = [*[good] * (3 * SEVERAL + 2), wrong, good]
    with connect(server.url) as client:
        for call in (client.encode_batch, lambda them: asyncio.run(many(them))):
            with pytest.raises(RequestRefused, match=rf"^HTTP 400: texts\[{3 * SEVERAL + 2}\]") as refused:
                call(items)
            assert refused.value.field is not None
            assert refused.value.field.startswith(f"texts[{3 * SEVERAL + 2}]")
        with pytest.raises(RequestRefused, match=r"^HTTP 400: text[:\[]"):
            client.encode(wrong)
        assert len(client.encode_batch(items[:-2])) == len(items) - 2


def test_local_says_what_it_cannot(local: Inference) -> None:
    """Never another result instead."""
    with pytest.raises(Unsupported, match="json_schema"):
        local.generate("a", json_schema="{}")
    with pytest.raises(Unsupported, match="fingerprints"):
        local.generate("a", fingerprints=True)
    with pytest.raises(Unsupported, match="inject"):
        local.generate("a", inject=Injection([0.0] * 256, positions=[0]))
    for call in (local.chat, local.encode):
        with pytest.raises(Unsupported, match="messages"):
            call(MESSAGES)
    with pytest.raises(Unsupported, match="cannot load"):
        connect("/no/such/model")


def test_verify(server: Server) -> None:
    """What this model generated passes, with a nonce or without; another text does not; what is none is a 400."""
    with connect(server.url) as client:
        found = client.generate(PROMPT, max_new_tokens=40, ignore_eos=True, fingerprints=True)
        with_nonce = client.generate(PROMPT, max_new_tokens=40, ignore_eos=True, fingerprints=True, nonce="n")
        honest = Claim.of(found)
        changed = replace(honest, output_ids=range(100, 140))
        verdicts = client.verify([honest, changed, Claim.of(with_nonce, "n")])
        assert [verdict.verdict for verdict in verdicts] == ["pass", "fail", "pass"]
        assert [bool(verdict.reason) for verdict in verdicts] == [False, True, False]
        with pytest.raises(RequestRefused) as refused:
            client.verify([replace(honest, fingerprints=["/9k="])])
        assert refused.value.field is not None
        assert refused.value.field.startswith("claims[0].fingerprints")
        with pytest.raises(ValueError, match="fingerprints=True"):
            Claim.of(client.generate(PROMPT, max_new_tokens=1))


def test_check(server: Server, local: Inference, capsys: pytest.CaptureFixture[str]) -> None:
    """``tessera check``: every answer is right, on a server and on a model; another width is found out."""
    assert main(["check", server.url, "--hidden-size", "256"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines] == ["ok    "] * 9 + ["all ch"]
    assert all(check.fine for check in checks(local, 256))
    assert main(["check", server.url, "--hidden-size", "4096"]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 3
    assert "shape (" in failed[0]


def test_async(server: Server, hf: HuggingFace) -> None:
    """The same methods as coroutines, many at once on one event loop."""

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            await client.health_check()
            assert await client.supports_hidden_states() is True
            info, one, many, groups, generated, chat = await asyncio.gather(
                client.server_info(),
                client.encode(TEXTS[0]),
                client.encode_batch(TEXTS * 100),
                client.generate_candidates_batch([PROMPT, TEXTS[0]], 3, max_new_tokens=4, temperature=0),
                client.generate_with_embedding(PROMPT, max_new_tokens=4),
                client.chat(MESSAGES, max_new_tokens=4, embedding=True),
            )
            assert chat.embedding is not None
            assert chat.embedding.tokens == len(rendered(hf, answer=True))
            assert "rows" in info.features
            assert relative_error(one.numpy(), mean(hf, TEXTS[0])) <= FLOAT32_ERROR
            assert generated.embedding is not None
            assert relative_error(generated.embedding.numpy(), mean(hf, PROMPT)) <= FLOAT32_ERROR
            for vector, text in zip(many, TEXTS * 100, strict=True):
                assert relative_error(vector, mean(hf, text)) <= FLOAT32_ERROR
            assert [len(group) > 0 for group in groups] == [True, True]
            pieces = [piece async for piece in client.stream(PROMPT, max_new_tokens=12, temperature=0)]
            assert pieces[-1].final is not None
            assert "".join(piece.text for piece in pieces) == pieces[-1].final.text
            (candidate,) = await client.generate_candidates(PROMPT, 1, max_new_tokens=2, temperature=0)
            assert len(candidate.output_ids) <= 2
            assert await client.verify([]) == []
            with pytest.raises(RequestRefused):
                await client.encode("")

    asyncio.run(run())


def test_a_server_without_rows(bare: Server) -> None:
    """It generates; what needs rows raises one error that says what the server lacks; so do the routes themselves."""
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/encode", {"text": "a"}), ("/v1/toploc/verify", {})):
        answer = httpx.post(bare.url + path, json=body, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
        assert "--enable-return-hidden-states or --toploc-verification" in answer.json()["error"]["message"]
    assert main(["check", bare.url]) == 1
    with connect(bare.url) as client:
        assert client.generate("a", max_new_tokens=2).text is not None
        assert len(client.chat(MESSAGES, max_new_tokens=2, ignore_eos=True).output_ids) == 2
        assert client.supports_hidden_states() is False
        for call in (
            lambda: client.encode("a"),
            lambda: client.chat(MESSAGES, max_new_tokens=2, embedding=True),
            lambda: client.generate_with_embedding("a", max_new_tokens=2),
            lambda: client.generate("a", max_new_tokens=2, hidden_states=True),
        ):
            with pytest.raises(HiddenStatesUnsupported, match="--enable-return-hidden-states"):
                call()


def test_a_stock_server(stock: Server) -> None:
    """SGLang's own hidden states miss the cached rows: the probe compares a cold and a warm answer, and says no."""
    with connect(stock.url) as client:
        assert client.supports_hidden_states() is False
        assert client.server_info().tessera is None
        with pytest.raises(HiddenStatesUnsupported):
            client.encode("a")
