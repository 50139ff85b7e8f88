"""The client that waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Self, TypeVar, Unpack

import httpx

from tessera.client import calls, probe
from tessera.client.calls import Call, Generating
from tessera.client.chunks import IN_FLIGHT, Matrix, chunked
from tessera.client.errors import ClientError, HiddenStatesUnsupported
from tessera.client.extract import Extract, whole
from tessera.client.http import Address, arguments, in_our_words, streaming
from tessera.client.options import (
    EncodeOptions,
    GenerateOptions,
    GenerateWithEmbeddingOptions,
    Prompt,
    SamplingOptions,
    Timeouts,
)
from tessera.client.progress import Bar
from tessera.client.prompts import prompts_of
from tessera.client.results import (
    Candidate,
    Claim,
    Delta,
    Embedding,
    Embeddings,
    Generation,
    ServerInfo,
    Verdict,
)
from tessera.client.retry import NEVER, Deadline, Retry, Tries
from tessera.client.status import Answer, check_status
from tessera.client.stream import StreamReader

T = TypeVar("T")


class Client:
    """A client of one server. Its methods are described in `tessera.client.interface.Inference`; threads may share it.

    Args:
        url: of the server, for example ``http://127.0.0.1:30000``.
        api_key: of a server that was started with ``--api-key``.
        timeouts: seconds for calls of each kind.
        retry: how failed calls are tried again.

    Raises:
        ValueError: no such URL or key can be.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, timeouts: Timeouts | None = None, retry: Retry | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or Retry()
        self._http = httpx.Client(**Address(self.url, api_key).options())

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """See `Inference.generate`."""
        return self._send(calls.generate(prompt, options, self._timeouts).call())

    def generate_with_embedding(self, prompt: Prompt, **options: Unpack[GenerateWithEmbeddingOptions]) -> Generation:
        """See `Inference.generate_with_embedding`."""
        return self._send(calls.generate_with_embedding(prompt, options, self._timeouts).call())

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Iterator[Delta]:
        """See `Inference.stream`."""
        return self._stream(calls.generate(prompt, options, self._timeouts))

    def generate_candidates(
        self,
        prompt: Prompt,
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Candidate]:
        """See `Inference.generate_candidates`."""
        return self.generate_candidates_batch([prompt], n, extract=extract, timeout=timeout, **sampling)[0]

    def generate_candidates_batch(
        self,
        prompts: Iterable[Prompt],
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[list[Candidate]]:
        """See `Inference.generate_candidates_batch`."""
        inputs = prompts_of("generate_candidates_batch", "prompts", prompts)
        if not inputs:
            return []
        return self._send(
            calls.candidates(inputs, n, extract, sampling, self._timeouts.batch if timeout is None else timeout)
        )

    def encode(self, text: Prompt, **options: Unpack[EncodeOptions]) -> Embedding:
        """See `Inference.encode`."""
        return self._send(calls.encode(text, options, self._timeouts))

    def encode_batch(
        self, texts: Iterable[Prompt], *, progress: bool = False, **options: Unpack[EncodeOptions]
    ) -> Embeddings:
        """See `Inference.encode_batch`."""
        from concurrent.futures import ThreadPoolExecutor, as_completed  # as slow to import as all of this client

        inputs = prompts_of("encode_batch", "texts", texts)
        matrix = Matrix(len(inputs))
        bar = Bar("encode", len(inputs), shown=progress)

        def send(where: slice) -> tuple[slice, Embeddings]:
            return where, self._send(calls.encode_batch(inputs[where], options, self._timeouts.batch, where.start))

        pool = ThreadPoolExecutor(IN_FLIGHT, "tessera-encode")
        try:
            for future in as_completed([pool.submit(send, where) for where in chunked(inputs)]):
                matrix.add(*future.result())
                bar.show(matrix.done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return matrix.whole()

    def verify(self, claims: Sequence[Claim]) -> list[Verdict]:
        """See `Inference.verify`."""
        return self._send(calls.verify(claims, self._timeouts.batch)) if claims else []

    def health_check(self) -> None:
        """See `Inference.health_check`."""
        self._send(calls.health_check())

    def supports_hidden_states(self) -> bool:
        """See `Inference.supports_hidden_states`."""
        call = calls.hidden_states_probe(self._timeouts)
        try:
            return not probe.problem(self._send(call), self._send(call))
        except HiddenStatesUnsupported:
            return False

    def server_info(self) -> ServerInfo:
        """See `Inference.server_info`."""
        return self._send(calls.server_info(self._timeouts))

    def close(self) -> None:
        """See `Inference.close`."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        deadline = Deadline(call.timeout, f"{call.method} {call.path}")
        return self._try(call, deadline, lambda: call.read(self._exchange(call, deadline)))

    def _try(self, call: Call[Any], deadline: Deadline, attempt: Callable[[], T]) -> T:
        """Attempt until it succeeds, may not be tried again, or the call's time is over."""
        tries = Tries(self._retry if call.retried else NEVER, deadline)
        while True:
            try:
                return attempt()
            except ClientError as error:
                pause = tries.after(error)
            time.sleep(pause)

    def _exchange(self, call: Call[Any], deadline: Deadline) -> Answer:
        with in_our_words(self.url, deadline), closing(self._open(call, deadline)) as response:
            return _answer(response, deadline)

    def _open(self, call: Call[Any], deadline: Deadline) -> httpx.Response:
        deadline.check()
        request = self._http.build_request(**arguments(call, deadline, self._timeouts))
        response = self._http.send(request, stream=True)
        # httpx would give the body as long as it gave the headers; what is left of the call's time is less.
        request.extensions["timeout"]["read"] = deadline.left
        return response

    def _stream(self, generating: Generating) -> Iterator[Delta]:
        call = streaming(generating)
        deadline = Deadline(call.timeout, f"the stream from {call.path}")
        reader = StreamReader(generating.wanted, generating.body)
        opened = self._try(call, deadline, lambda: self._open_stream(call, deadline))
        with in_our_words(self.url, deadline), closing(opened) as response:
            for line in deadline.checked(response.iter_lines()):
                piece = reader.read(line)
                if piece is not None:
                    yield piece
        reader.end()

    def _open_stream(self, call: Call[None], deadline: Deadline) -> httpx.Response:
        with in_our_words(self.url, deadline):
            response = self._open(call, deadline)
            if not response.is_success:
                with closing(response):
                    check_status(_answer(response, deadline))
        return response


def _answer(response: httpx.Response, deadline: Deadline) -> Answer:
    content = bytearray()
    for piece in deadline.checked(response.iter_bytes()):
        content += piece
    return Answer(response.status_code, response.headers, content)
