"""The client for coroutines: as `tessera.client.sync`, with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
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


class AsyncClient:
    """A client of one server, for one event loop. `tessera.client.interface.Inference` describes its methods.

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
        self._http = httpx.AsyncClient(**Address(self.url, api_key).options())

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """See `Inference.generate`."""
        return await self._send(calls.generate(prompt, options, self._timeouts).call())

    async def generate_with_embedding(
        self, prompt: Prompt, **options: Unpack[GenerateWithEmbeddingOptions]
    ) -> Generation:
        """See `Inference.generate_with_embedding`."""
        return await self._send(calls.generate_with_embedding(prompt, options, self._timeouts).call())

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncIterator[Delta]:
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
        inputs = prompts_of("generate_candidates_batch", "prompts", prompts)
        if not inputs:
            return []
        return await self._send(
            calls.candidates(inputs, n, extract, sampling, self._timeouts.batch if timeout is None else timeout)
        )

    async def encode(self, text: Prompt, **options: Unpack[EncodeOptions]) -> Embedding:
        """See `Inference.encode`."""
        return await self._send(calls.encode(text, options, self._timeouts))

    async def encode_batch(
        self, texts: Iterable[Prompt], *, progress: bool = False, **options: Unpack[EncodeOptions]
    ) -> Embeddings:
        """See `Inference.encode_batch`."""
        inputs = prompts_of("encode_batch", "texts", texts)
        matrix = Matrix(len(inputs))
        bar = Bar("encode", len(inputs), shown=progress)

        turns = asyncio.Semaphore(IN_FLIGHT)

        async def send(where: slice) -> None:
            async with turns:
                call = calls.encode_batch(inputs[where], options, self._timeouts.batch, where.start)
                matrix.add(where, await self._send(call))
                bar.show(matrix.done)

        tasks = [asyncio.ensure_future(send(where)) for where in chunked(inputs)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
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

    async def close(self) -> None:
        """See `Inference.close`."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _send(self, call: Call[T]) -> T:
        deadline = Deadline(call.timeout, f"{call.method} {call.path}")

        async def attempt() -> T:
            return call.read(await self._exchange(call, deadline))

        return await self._try(call, deadline, attempt)

    async def _try(self, call: Call[Any], deadline: Deadline, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until it succeeds, may not be tried again, or the call's time is over."""
        tries = Tries(self._retry if call.retried else NEVER, deadline)
        while True:
            try:
                return await attempt()
            except ClientError as error:
                pause = tries.after(error)
            await asyncio.sleep(pause)

    async def _exchange(self, call: Call[Any], deadline: Deadline) -> Answer:
        with in_our_words(self.url, deadline):
            async with asyncio.timeout(deadline.left), aclosing(await self._open(call, deadline)) as response:
                return Answer(response.status_code, response.headers, await response.aread())

    async def _open(self, call: Call[Any], deadline: Deadline) -> httpx.Response:
        deadline.check()
        request = self._http.build_request(**arguments(call, deadline, self._timeouts))
        return await self._http.send(request, stream=True)

    async def _stream(self, generating: Generating) -> AsyncIterator[Delta]:
        call = streaming(generating)
        deadline = Deadline(call.timeout, f"the stream from {call.path}")
        reader = StreamReader(generating.wanted, generating.body)
        opened = await self._try(call, deadline, lambda: self._open_stream(call, deadline))
        with in_our_words(self.url, deadline):
            async with aclosing(opened) as response:
                lines = response.aiter_lines()
                while (line := await _next(lines, deadline)) is not None:
                    piece = reader.read(line)
                    if piece is not None:
                        yield piece
        reader.end()

    async def _open_stream(self, call: Call[None], deadline: Deadline) -> httpx.Response:
        with in_our_words(self.url, deadline):
            async with asyncio.timeout(deadline.left):
                response = await self._open(call, deadline)
                if not response.is_success:
                    async with aclosing(response):
                        check_status(Answer(response.status_code, response.headers, await response.aread()))
        return response


async def _next(lines: AsyncIterator[str], deadline: Deadline) -> str | None:
    async with asyncio.timeout(deadline.left):
        return await anext(lines, None)
