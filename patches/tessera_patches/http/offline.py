"""`sgl.Engine`: our fields are keywords of its ``generate`` and ``async_generate``. Main process."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any

from sglang.srt.entrypoints.engine import Engine

from tessera.capabilities import registry

_STOCK = {*signature(Engine.generate).parameters}
_OURS = {name for name, _ in registry.declared_fields(openai=False)} - _STOCK
_given: ContextVar[dict[str, Any]] = ContextVar("_given")


def generate(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND ``Engine.generate``."""
    with _without_ours(kwargs) as stock:
        return original(engine, *args, **stock)


async def async_generate(
    original: Callable[..., Coroutine[Any, Any, Any]], engine: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND ``Engine.async_generate``."""
    with _without_ours(kwargs) as stock:
        return await original(engine, *args, **stock)


def pop_keywords() -> dict[str, Any]:
    """Our keywords of the current call, for the first request that it makes; requests that SGLang derives get none."""
    given = _given.get({})
    if given:
        _given.set({})
    return given


@contextmanager
def _without_ours(kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """SGLang's keywords; ours wait for `pop_keywords`. Each call has its own, also beside others in one event loop.

    Raises:
        RuntimeError: SGLang did not make our kind of request, so the answer would lack what was asked for.
    """
    token = _given.set({name: value for name, value in kwargs.items() if name in _OURS})
    try:
        yield {name: value for name, value in kwargs.items() if name not in _OURS}
        if missed := _given.get():
            raise RuntimeError(f"{', '.join(missed)}: SGLang made no request of this call that takes them")
    finally:
        _given.reset(token)
