"""SGLang's routes that change weights: while a feature is on, what would end the scheduler is refused."""

from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from sglang.srt.configs.load_config import LoadFormat
from torch.distributed import Backend

from tessera.errors import BadRequest
from tessera_patches.core import calls

_FORMATS = tuple(str(one.value) for one in LoadFormat if one is not LoadFormat.PRIVATE)
"""Formats of files. The loader of the private one is not in SGLang's package."""
_OF_TENSORS = ("direct", "flattened_bucket")
_BACKENDS = [name for name in Backend.backend_list if name != Backend.UNDEFINED]

Check = Callable[[Any], None]


def add_routes(app: FastAPI, stock: Any, args: Any) -> None:
    """Add checked versions of these routes to SGLang's application.

    Args:
        app: SGLang's.
        stock: SGLang's module ``http_server``.
        args: SGLang's ``ServerArgs``.
    """
    groups: set[str] = set()
    loaders = (*_OF_TENSORS, *(args.custom_weight_loader or ()))

    def check_file_format(obj: Any) -> None:
        _check_format(obj.load_format, _FORMATS, (obj.load_format or "").lower())  # as SGLang reads it

    def check_tensor_format(obj: Any) -> None:
        _check_format(obj.load_format, loaders, obj.load_format)

    def check_known_group(obj: Any) -> None:
        if obj.group_name not in groups:
            raise BadRequest("group_name", obj.group_name, "a group that /init_weights_update_group has made")

    def add_group(obj: Any) -> None:
        groups.add(obj.group_name)

    def remove_group(obj: Any) -> None:
        groups.discard(obj.group_name)

    calls.count(add_routes)
    for endpoint, check, then in (
        (stock.update_weights_from_disk, check_file_format, _nothing),
        (stock.update_weights_from_tensor, check_tensor_format, _nothing),
        (stock.update_weights_from_distributed, check_known_group, _nothing),
        (stock.init_weights_update_group, _check_group, add_group),
        (stock.destroy_weights_update_group, _nothing, remove_group),
    ):
        route = _with_checks(endpoint, check, then)
        app.add_api_route(
            f"/{endpoint.__name__}", route, methods=["POST"], response_model=None, include_in_schema=False
        )


def _with_checks(endpoint: Callable[..., Awaitable[Any]], check: Check, then: Check) -> Callable[..., Awaitable[Any]]:
    """The endpoint, with its signature and who may call it."""

    @wraps(endpoint)
    async def check_and_call(obj: Any, request: Any) -> Any:
        check(obj)
        response = await endpoint(obj, request)
        if response.status_code == HTTPStatus.OK:
            then(obj)
        return response

    return check_and_call


def _nothing(_: Any) -> None:
    return


def _check_group(obj: Any) -> None:
    if not obj.group_name:
        raise BadRequest("group_name", obj.group_name, "a name that is not empty")
    for part in obj.backend.split(","):  # one for all devices, or "cpu:gloo,cuda:nccl"
        if part.rpartition(":")[2].lower() not in _BACKENDS:
            raise BadRequest("backend", obj.backend, f"{' | '.join(_BACKENDS)}, or device:backend,…")


def _check_format(given: str | None, allowed: tuple[str, ...], read: str | None) -> None:
    if given is not None and read not in allowed:
        raise BadRequest("load_format", given, " | ".join(allowed))
