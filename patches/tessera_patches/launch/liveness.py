"""Proof that SGLang comes to our seams: a server in which it does not ends, instead of serving without a feature."""

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psutil

from tessera import config
from tessera.errors import StartRefused
from tessera_kernels import driver
from tessera_patches import inventory
from tessera_patches.core import apply, calls
from tessera_patches.core.seam import Phase, Runs, Seam
from tessera_patches.engine.options import resolved

logger = logging.getLogger(__name__)

_TOKENS = {Runs.REQUEST: 1, Runs.DECODE: 2}
"""By stage, how many tokens a request must have generated to show it."""
_SCHEDULER = "sglang.srt.managers.scheduler.configure_scheduler_process"
"""The first seam of a scheduler's process."""
_APPLICATION = "sglang.srt.entrypoints.http_server.set_global_state"
"""The first seam of SGLang's HTTP application, which `Engine` does without."""
_unreached: set[Runs] = set()
"""The stages that no request of this process's server has shown yet."""


def expect_answers() -> None:
    """Have the first answers of the server that is about to start in this process checked."""
    _unreached.update(_TOKENS if config.active.guarded else ())


def check_ready() -> None:
    """Check the seams of the start, once every scheduler is ready. Counts of the others then show requests alone.

    Raises:
        StartRefused: a seam that must have been called by now was not.
    """
    if config.active.guarded:
        check(Runs.START)
        calls.forget(required(*_TOKENS))


def warm_up(original: Callable[..., None], server_args: Any, *args: Any, **kwargs: Any) -> None:
    """AROUND ``http_server._wait_and_warmup``, which runs in a thread beside the HTTP application."""
    _check_or_end(Runs.START, Runs.HTTP)
    original(server_args, *args, **kwargs)
    if resolved(server_args).skip_server_warmup:
        return
    if _unreached == set(_TOKENS):
        _check_or_end(Runs.REQUEST)  # `check_first_answers` is one of them
    elif not _unreached:
        _check_or_end(Runs.WARM_UP)


def check_first_answers(original: Callable[..., Awaitable[None]], manager: Any, outputs: Any) -> Awaitable[None]:
    """AROUND ``TokenizerManager._handle_batch_output``: checks the first requests that end with tokens."""
    handled = original(manager, outputs)
    return _check_after(handled, outputs) if _unreached else handled


async def _check_after(handled: Awaitable[None], outputs: Any) -> None:
    await handled
    ended = zip(outputs.finished_reasons, getattr(outputs, "completion_tokens", ()), strict=False)
    tokens = max((count for reason, count in ended if reason and reason["type"] != "abort"), default=0)
    stages = [stage for stage in _unreached if tokens >= _TOKENS[stage]]
    for stage in stages:
        _check_or_end(Runs.START, *([Runs.HTTP] if _serves_http() else []), stage)
        _unreached.discard(stage)
    if stages and not _unreached:
        seams = len(required_ever())
        logger.info("tessera: self-check passed: SGLang comes to all %d seams that every request needs", seams)


def _serves_http() -> bool:
    return not calls.unreached(seam for seam in required(Runs.HTTP) if seam.target == _APPLICATION)


def all_called() -> bool:
    """Whether requests have shown that SGLang comes to each seam that every server reaches."""
    return config.active.guarded and not _unreached


def required_ever() -> list[Seam]:
    """The seams that every server with these features reaches."""
    return required(Runs.START, Runs.HTTP, *_TOKENS)


def required(*stages: Runs) -> list[Seam]:
    """The seams that must have been reached by one of these stages, for what is on."""
    features = config.active.features()
    on = {*features, *config.conditions}
    return [seam for seam in _seams_of(features) if seam.runs in stages and seam.must_run(on)]


def on_demand() -> list[Seam]:
    """The seams of these features that not every server reaches."""
    ever = required_ever()
    return [seam for seam in _seams_of(config.active.features()) if seam not in ever]


def _seams_of(features: list[str]) -> Iterator[Seam]:
    """The seams of this machine for these features."""
    for phase in Phase:
        if phase is not Phase.CPU or driver.is_missing():
            yield from inventory.seams(phase, features)


def check(*stages: Runs) -> None:
    """Compare the counts with what must have been reached.

    Raises:
        StartRefused: a seam of these stages was not.
    """
    if silent := calls.unreached(required(*stages)):
        hint = "; code that starts schedulers itself must call load_plugins() in them" if _SCHEDULER in silent else ""
        raise StartRefused(f"SGLang did not call our hooks on {', '.join(silent)}{hint}")


@contextlib.contextmanager
def end_on_error() -> Iterator[None]:
    """End the whole server with one line where the block fails, in whatever thread or task.

    At once: Python waits for children before it ends a process, and SGLang watches them, and ends this process by a
    signal when it finds them dead.
    """
    try:
        with apply.exit_on_error():
            yield
    except SystemExit as error:
        apply.write_line(str(error.code))
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(1)


def _check_or_end(*stages: Runs) -> None:
    """Check the seams of these stages; end the whole server if one was not reached."""
    with end_on_error():
        check(*stages)
