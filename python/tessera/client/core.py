"""The client of a server, written once: `tessera.client.sync` runs it to its end, `tessera.client.aio` awaits it.

What waits is left to its hooks: an exchange over HTTP, lines of a stream, a pause, several calls at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, Unpack

import httpx

from tessera.client import calls, probe
from tessera.client.calls import Call, Generating
from tessera.client.chunks import Matrix, request_slices
from tessera.client.errors import ClientError, HiddenStatesUnsupported
from tessera.client.extract import Extract, whole
from tessera.client.http import streaming
from tessera.client.options import (
    ChatOptions,
    EncodeOptions,
    GenerateOptions,
    GenerateWithEmbeddingOptions,
    Messages,
    Prompt,
    SamplingOptions,
    Timeouts,
)
from tessera.client.progress import Bar
from tessera.client.prompts import as_prompts
from tessera.client.results import Candidate, Claim, Delta, Embedding, Embeddings, Generation, ServerInfo, Verdict
from tessera.client.retry import NEVER, Deadline, Retry
from tessera.client.status import Answer
from tessera.client.stream import StreamReader

Job = TypeVar("Job")
T = TypeVar("T")


class Core(ABC):
    """The methods of `tessera.client.interface.Inference` as coroutines.

    Args:
        url: of the server.
        timeouts: seconds for calls of each kind.
        retry: how failed calls are tried again.
    """

    def __init__(self, url: str, timeouts: Timeouts | None, retry: Retry | None) -> None:
        self.url = url.rstrip("/")
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or Retry()

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """See `Inference.generate`."""
        return await self._send(calls.generate(prompt, options, self._timeouts).call())

    async def generate_with_embedding(
        self, prompt: Prompt, **options: Unpack[GenerateWithEmbeddingOptions]
    ) -> Generation:
        """See `Inference.generate_with_embedding`."""
        return await self._send(calls.generate_with_embedding(prompt, options, self._timeouts).call())

    async def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Generation:
        """See `Inference.chat`."""
        return await self._send(calls.chat(messages, options, self._timeouts))

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGenerator[Delta]:
        """See `Inference.stream`."""
        return self._stream(calls.generate(prompt, options, self._timeouts))

    async def generate_candidates(
        self,
        prompt: Prompt,
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Candidate]:
        """See `Inference.generate_candidates`."""
        groups = await self.generate_candidates_batch([prompt], n, extract=extract, timeout=timeout, **sampling)
        return groups[0]

    async def generate_candidates_batch(
        self,
        prompts: Iterable[Prompt],
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[list[Candidate]]:
        """See `Inference.generate_candidates_batch`."""
        inputs = as_prompts("generate_candidates_batch", "prompts", prompts)
        if not inputs:
            return []
        seconds = self._timeouts.batch if timeout is None else timeout
        return await self._send(calls.candidates(inputs, n, extract, sampling, seconds))

    async def encode(self, text: Prompt | Messages, **options: Unpack[EncodeOptions]) -> Embedding:
        """See `Inference.encode`."""
        return await self._send(calls.encode(text, options, self._timeouts))

    async def encode_batch(
        self, texts: Iterable[Prompt], *, progress: bool = False, **options: Unpack[EncodeOptions]
    ) -> Embeddings:
        """See `Inference.encode_batch`."""
        inputs = as_prompts("encode_batch", "texts", texts)
        matrix = Matrix(len(inputs))
        bar = Bar("encode", len(inputs), shown=progress)

        async def send(where: slice) -> tuple[slice, Embeddings]:
            call = calls.encode_batch(inputs[where], options, self._timeouts.batch, where.start)
            return where, await self._send(call)

        async with aclosing(self._concurrently(send, request_slices(inputs))) as parts:
            async for where, part in parts:
                matrix.add(where, part)
                bar.show(matrix.done)
        return matrix.whole()

    async def verify(self, claims: Sequence[Claim]) -> list[Verdict]:
        """See `Inference.verify`."""
        return await self._send(calls.verify(claims, self._timeouts.batch)) if claims else []

    async def health_check(self) -> None:
        """See `Inference.health_check`."""
        await self._send(calls.health_check())

    async def supports_hidden_states(self) -> bool:
        """See `Inference.supports_hidden_states`."""
        call = calls.hidden_states_probe(self._timeouts)
        try:
            return not probe.problem(await self._send(call), await self._send(call))
        except HiddenStatesUnsupported:
            return False

    async def server_info(self) -> ServerInfo:
        """See `Inference.server_info`."""
        return await self._send(calls.server_info(self._timeouts))

    @abstractmethod
    async def close(self) -> None:
        """See `Inference.close`."""

    async def _send(self, call: Call[T]) -> T:
        deadline = Deadline(call.timeout, f"{call.method} {call.path}")

        async def attempt() -> T:
            return call.read(await self._exchange(call, deadline))

        return await self._try(call, deadline, attempt)

    async def _try(self, call: Call[Any], deadline: Deadline, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until it succeeds, may not be tried again, or the call's time is over."""
        retry = self._retry if call.retried else NEVER
        tried = 0
        while True:
            try:
                return await attempt()
            except ClientError as error:
                pause = retry.pause(tried, error, deadline.left)
                if pause is None:
                    raise
            await self._pause(pause)
            tried += 1

    async def _stream(self, generating: Generating) -> AsyncGenerator[Delta]:
        call = streaming(generating)
        deadline = Deadline(call.timeout, f"the stream from {call.path}")
        reader = StreamReader(generating.wanted, generating.body)
        opened = await self._try(call, deadline, lambda: self._open(call, deadline))
        async with aclosing(self._lines(opened, deadline)) as lines:
            async for line in lines:
                piece = reader.read(line)
                if piece is not None:
                    yield piece
        reader.end()

    @abstractmethod
    async def _exchange(self, call: Call[Any], deadline: Deadline) -> Answer:
        """One try of a call; raises `ClientError` where no answer comes in time."""

    @abstractmethod
    async def _open(self, call: Call[Any], deadline: Deadline) -> httpx.Response:
        """The response of a stream that has begun; raises `ClientError` where it does not, or has an error status."""

    @abstractmethod
    def _lines(self, opened: httpx.Response, deadline: Deadline) -> AsyncGenerator[str]:
        """Its lines, and then it is closed; raises `ClientError` where they do not come in time."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Wait for so many seconds."""

    @abstractmethod
    def _concurrently(self, job: Callable[[Job], Awaitable[T]], over: Iterable[Job]) -> AsyncGenerator[T]:
        """Results of the job for each, as they come, `IN_FLIGHT` at a time; what is not awaited is given up."""
