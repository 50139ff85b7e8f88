"""Every call as data: what to send, how long it may take, and how to read the answer. No input or output here."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tessera.client import answers
from tessera.client.candidates import group_candidates
from tessera.client.chunks import with_list_index
from tessera.client.errors import StatusError
from tessera.client.extract import Extract
from tessera.client.injection import Injection
from tessera.client.options import (
    ChatOptions,
    EmbeddingOptions,
    EncodeOptions,
    GenerateOptions,
    GenerateWithEmbeddingOptions,
    Messages,
    PoolingOptions,
    Prompt,
    SamplingOptions,
    Timeouts,
    check_known,
)
from tessera.client.probe import fresh_prompt
from tessera.client.prompts import token_ids
from tessera.client.results import Candidate, Claim, Embedding, Embeddings, Generation, ServerInfo, Verdict
from tessera.client.status import Answer, parse_json

T = TypeVar("T")

CANDIDATE_SAMPLING: SamplingOptions = {"temperature": 0.6, "top_p": 0.95, "max_new_tokens": 128}
"""Defaults of candidates. Greedy, n of them would all be the same."""
_OPENAI_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
HEALTH_SECONDS = 30.0
"""A healthy server generates one token in less, whatever else it does."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One HTTP request.

    Attributes:
        path: on the server.
        body: JSON object; None for GET.
        read: from the answer to the result; raises `tessera.client.errors.ClientError`.
        timeout: seconds for all tries together.
        accept: media type of a good answer.
        retried: whether a failure may be tried again.
    """

    path: str
    body: dict[str, Any] | None
    read: Callable[[Answer], T]
    timeout: float
    accept: str = "application/json"
    retried: bool = True

    @property
    def method(self) -> str:
        """GET without a body, else POST."""
        return "GET" if self.body is None else "POST"

    def content(self) -> bytes | None:
        """The body as JSON in UTF-8; None for GET."""
        return None if self.body is None else json.dumps(self.body).encode()


@dataclass(frozen=True, slots=True)
class Generating:
    """A request to ``/generate`` for one prompt.

    Attributes:
        body: JSON object.
        wanted: fields of `Generation` that were asked for.
        timeout: seconds.
    """

    body: dict[str, Any]
    wanted: frozenset[str]
    timeout: float

    def call(self) -> Call[Generation]:
        """The call that brings the whole generation at once."""
        return Call("/generate", self.body, self._read, self.timeout)

    def _read(self, answer: Answer) -> Generation:
        return answers.generation(parse_json(answer), self.wanted, self.body)


def generate(prompt: Prompt, options: GenerateOptions, timeouts: Timeouts) -> Generating:
    """``generate`` and ``stream``: raw rows come as base64, fingerprints with the prompt's ids, which ``verify`` needs.

    Raises:
        TypeError: there is no such option.
    """
    check_known("generate", options, GenerateOptions)
    return _generating(_prompt(prompt), dict(options), timeouts)


def generate_with_embedding(prompt: Prompt, options: GenerateWithEmbeddingOptions, timeouts: Timeouts) -> Generating:
    """``generate_with_embedding``: the embedding's options become one field, the others are those of ``generate``.

    Raises:
        TypeError: there is no such option.
    """
    check_known("generate_with_embedding", options, GenerateWithEmbeddingOptions)
    rest = dict(options)
    how = {key: rest.pop(key) for key in EmbeddingOptions.__annotations__ if key in rest}
    plain = _generating(_prompt(prompt), rest, timeouts)
    embedding = {"return_embedding": {"encoding_format": "base64", **how}}
    return Generating(plain.body | embedding, plain.wanted | {"embedding"}, plain.timeout)


def chat(messages: Messages, options: ChatOptions, timeouts: Timeouts) -> Call[Generation]:
    """``chat``: the fields are those of ``/generate``, the sampling parameters OpenAI's."""
    check_known("chat", options, ChatOptions)
    fields: dict[str, Any] = dict(options)
    embedding = fields.pop("embedding", False)
    if isinstance(embedding, Mapping):
        check_known("chat(embedding=…)", embedding, EmbeddingOptions)
    plain = _generating({"messages": list(messages), "return_token_ids": True}, fields, timeouts)
    body, wanted = plain.body, plain.wanted
    sampling = body.pop("sampling_params", {})
    body |= {_OPENAI_NAMES.get(name, name): value for name, value in sampling.items() if name != "json_schema"}
    if "json_schema" in sampling:
        schema = {"name": "answer", "schema": json.loads(sampling["json_schema"])}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if body.pop("return_logprob", False):
        body["logprobs"] = True
    if embedding is not False:
        body["return_embedding"] = {"encoding_format": "base64", **({} if embedding is True else embedding)}
        wanted |= {"embedding"}

    def read(answer: Answer) -> Generation:
        return answers.chat(answer, wanted, body)

    return Call("/v1/chat/completions", body, read, plain.timeout)


def candidates(
    prompts: Sequence[Prompt], n: int, extract: Extract, sampling: SamplingOptions, timeout: float
) -> Call[list[list[Candidate]]]:
    """``generate_candidates_batch``: one request for all; the answer is the flat list of prompts x n.

    The copies are asked for with SGLang's ``n``, not by repeating the prompt: SGLang then computes each prompt once and
    takes it from its cache n times. Repeated prompts of one request are each computed (docs/design/log/2026-11-21.md).

    Raises:
        ValueError: n is below 1, or texts and token ids are mixed.
    """
    check_known("generate_candidates", sampling, SamplingOptions)
    if n < 1:
        raise ValueError(f"n is {n}; it must be 1 or more")
    fields = [_prompt(prompt) for prompt in prompts]
    if len({tuple(field) for field in fields}) > 1:
        raise ValueError("the prompts are partly texts and partly token ids; give all of one kind")
    listed = {key: [field[key] for field in fields] for key in fields[0]}
    body = {**listed, "sampling_params": {**CANDIDATE_SAMPLING, **sampling, "n": n}, "return_logprob": True}

    def read(answer: Answer) -> list[list[Candidate]]:
        generations = answers.generations(answer, len(prompts) * n, frozenset({"token_logprobs"}))
        return group_candidates(generations, n, extract)

    return Call("/generate", body, read, timeout)


def encode(text: Prompt | Messages, options: EncodeOptions, timeouts: Timeouts) -> Call[Embedding]:
    """``encode``: a batch of one, and its only vector ``[H]``; of a chat the server applies the template.

    Raises:
        TypeError: there is no such option.
    """
    given: Any = text
    if isinstance(given, Sequence) and any(isinstance(item, Mapping) for item in given):
        check_known("encode", options, EncodeOptions)
        batch = _embeddings({"messages": list(given)}, 1, options, timeouts.request, None)
    else:
        batch = encode_batch([given], options, timeouts.request, first=None)

    def read(answer: Answer) -> Embedding:
        one = batch.read(answer)
        return Embedding(one.matrix[0], one.prompt_tokens)

    return Call(batch.path, batch.body, read, batch.timeout, batch.accept)


def encode_batch(
    inputs: Sequence[Prompt], options: EncodeOptions, timeout: float, first: int | None = 0
) -> Call[Embeddings]:
    """One chunk of ``encode_batch``: one binary answer for all.

    Args:
        inputs: of the chunk.
        options: of the call.
        timeout: seconds.
        first: place of the chunk's first input in the caller's list, for errors; None where it gave no list.

    Raises:
        ValueError: texts and token ids are mixed.
    """
    check_known("encode_batch", options, EncodeOptions)
    plain = [text if isinstance(text, str) else token_ids(text) for text in inputs]
    if len({isinstance(item, str) for item in plain}) > 1:
        raise ValueError("the inputs are partly texts and partly token ids; give all of one kind")
    return _embeddings({"input": plain}, len(plain), options, timeout, first)


def _embeddings(
    given: dict[str, Any], count: int, options: EncodeOptions, timeout: float, first: int | None
) -> Call[Embeddings]:
    # base64 is for a proxy that does not pass on what the client accepts; a binary answer holds the numbers themselves.
    body = {"model": "", **given, "encoding_format": "base64", **options}
    how = {name: value for name, value in options.items() if name in PoolingOptions.__annotations__}

    def read(answer: Answer) -> Embeddings:
        try:
            return answers.embeddings(answer, count, how)
        except StatusError as error:
            raise with_list_index(error, first) from None

    return Call("/v1/embeddings", body, read, timeout, "application/octet-stream")


def verify(claims: Sequence[Claim], timeout: float) -> Call[list[Verdict]]:
    """``verify``: one verdict for each claim, in their order. ``timeout`` is in seconds, for all together."""
    listed = [
        {
            "input_ids": token_ids(claim.input_ids),
            "output_ids": token_ids(claim.output_ids),
            "fingerprints": list(claim.fingerprints),
            **({} if claim.nonce is None else {"nonce": claim.nonce}),
            **({} if claim.lora_path is None else {"lora_path": claim.lora_path}),
            **_injected(claim.inject),
        }
        for claim in claims
    ]
    return Call("/v1/toploc/verify", {"claims": listed}, lambda a: answers.verdicts(a, len(listed)), timeout)


def health_check() -> Call[None]:
    """``health_check``: one token, asked for with the key. SGLang's own health routes ask for none."""
    sampling = {"max_new_tokens": 1, "temperature": 0}
    body = {"input_ids": [0], "sampling_params": sampling}

    def read(answer: Answer) -> None:
        answers.generation(parse_json(answer), frozenset())

    return Call("/generate", body, read, HEALTH_SECONDS, retried=False)


def server_info(timeouts: Timeouts) -> Call[ServerInfo]:
    """``server_info``: who answers and what is on; no model runs for it."""
    return Call("/server_info", None, answers.server_info, timeouts.request)


def hidden_states_probe(timeouts: Timeouts) -> Call[Generation]:
    """To be sent twice: a prompt that no cache has seen, and its raw rows (see `tessera.client.probe`)."""
    options: GenerateOptions = {"max_new_tokens": 1, "temperature": 0, "hidden_states": True}
    return generate(fresh_prompt(), options, timeouts).call()


def _generating(body: dict[str, Any], options: dict[str, Any], timeouts: Timeouts) -> Generating:
    sampling = {name: options[name] for name in SamplingOptions.__annotations__ if name in options}
    if sampling:
        body["sampling_params"] = sampling
    wanted = set()
    if options.get("logprobs"):
        body["return_logprob"] = True
        wanted.add("token_logprobs")
    if options.get("hidden_states"):
        body |= {"return_hidden_states": options["hidden_states"], "hidden_states_format": "base64"}
        wanted.add("hidden_states")
    if options.get("fingerprints"):
        body |= {"return_toploc_fingerprints": True, "return_input_ids": True}
        wanted.add("fingerprints")
        if options.get("nonce") is not None:
            body["toploc_nonce"] = options["nonce"]
    if options.get("lora_path") is not None:
        body["lora_path"] = options["lora_path"]
    body |= _injected(options.get("inject"))
    return Generating(body, frozenset(wanted), options.get("timeout", timeouts.request))


def _injected(inject: Injection | Sequence[Injection] | None) -> dict[str, Any]:
    if inject is None:
        return {}
    return {"input_embed_overrides": [one.field() for one in ([inject] if isinstance(inject, Injection) else inject)]}


def _prompt(prompt: Prompt) -> dict[str, Any]:
    return {"text": prompt} if isinstance(prompt, str) else {"input_ids": token_ids(prompt)}
