"""What an OpenAI route refuses with a 4xx leaves no traceback in the server's log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.serving_base import OpenAIServingBase

from tessera.carry import Live
from tessera.errors import RequestFailed, TesseraError, TooLarge
from tessera.http.openai import Collector
from tessera_patches.http.openai import _collect

LARGE = TooLarge("return_hidden_states", "up to 9 bytes", "at most 8 bytes")


class Serving(OpenAIServingBase):  # type: ignore[misc]  # inherited from Any
    """SGLang's frame of each route, around an engine that refuses."""

    def __init__(self, live: Live, error: TesseraError) -> None:
        self.tokenizer_manager = SimpleNamespace(request_logger=SimpleNamespace(log_requests=False))
        self._live, self._error = live, error

    def _request_id_prefix(self) -> str:
        return ""

    def _convert_to_internal_request(self, request: Any, *_: Any) -> tuple[Any, Any]:
        return request, request

    async def _handle_non_streaming_request(self, *_: Any) -> Any:
        return await anext(_collect(self._outputs(), self._live, Collector()))

    async def _outputs(self) -> AsyncIterator[Any]:
        raise self._error
        yield


@pytest.mark.parametrize(("error", "logged"), [(LARGE, 0), (RequestFailed("rows_not_finite", "NaN"), 1)])
def test_without_a_traceback(caplog: pytest.LogCaptureFixture, error: TesseraError, logged: int) -> None:
    """A failure of the server keeps its own; the route answers either with the error itself."""
    live = Live()
    with caplog.at_level(logging.DEBUG):
        asyncio.run(Serving(live, error).handle_request(SimpleNamespace(), None))
    assert live.error is error
    assert len([record for record in caplog.records if record.exc_info]) == logged
