"""Routes that change weights: what would end SGLang's scheduler is refused; who may call them stays the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.entrypoints import http_server as stock
from sglang.srt.utils.auth import AuthLevel

from tessera.errors import BadRequest
from tessera_patches.http import weight_routes
from tessera_patches.http.http_server import answer_error

pytestmark = pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated")  # SGLang's answers

GROUP = {"master_address": "localhost", "master_port": 1, "rank_offset": 1, "world_size": 2, "backend": "gloo"}
WEIGHTS: dict[str, Any] = {"names": [], "dtypes": [], "shapes": []}
Post = Callable[[str, dict[str, Any]], Any]


@pytest.fixture
def calls() -> list[str]:
    """What reached SGLang."""
    return []


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> FastAPI:
    """SGLang's own routes behind ours, with a manager that does nothing."""

    def does(name: str, *result: Any) -> Any:
        async def done(obj: Any, _: Any) -> tuple[Any, ...]:
            calls.append(name)
            return result

        return done

    names = [
        *("update_weights_from_tensor", "update_weights_from_distributed"),
        *("init_weights_update_group", "destroy_weights_update_group"),
    ]
    manager = SimpleNamespace(**{name: does(name, True, "") for name in names})
    manager.update_weights_from_disk = does("update_weights_from_disk", True, "", 0)
    monkeypatch.setattr(stock, "_global_state", SimpleNamespace(tokenizer_manager=manager))
    app = FastAPI()
    app.add_exception_handler(BadRequest, answer_error)
    weight_routes.add_routes(app, stock, SimpleNamespace(custom_weight_loader=["own.loader"]))
    return app


@pytest.fixture
def post(app: FastAPI) -> Post:
    """Sends a body to a route."""
    client = TestClient(app)
    return lambda path, body: client.post(path, json=body)


def disk(load_format: str | None) -> tuple[str, dict[str, Any]]:
    """An update from files."""
    return "/update_weights_from_disk", {"model_path": "m", "load_format": load_format}


def tensor(load_format: str | None) -> tuple[str, dict[str, Any]]:
    """An update from tensors."""
    return "/update_weights_from_tensor", {"serialized_named_tensors": [], "load_format": load_format}


@pytest.mark.parametrize(
    ("request_", "field", "allowed"),
    [
        (disk("nonsense"), "load_format", "safetensors"),
        (disk(""), "load_format", "safetensors"),
        (disk("private"), "load_format", "safetensors"),
        (tensor("nonsense"), "load_format", "direct | flattened_bucket | own.loader"),
        (tensor("safetensors"), "load_format", "direct | flattened_bucket | own.loader"),
        (("/init_weights_update_group", GROUP | {"backend": "nonsense"}), "backend", "gloo"),
        (("/init_weights_update_group", GROUP | {"backend": "cpu:nonsense,cuda:nccl"}), "backend", "gloo"),
        (("/init_weights_update_group", GROUP | {"group_name": ""}), "group_name", "not empty"),
        (("/update_weights_from_distributed", WEIGHTS), "group_name", "/init_weights_update_group"),
    ],
)
def test_refused(post: Post, calls: list[str], request_: tuple[str, Any], field: str, allowed: str) -> None:
    """400 with the field, its value and what is allowed; nothing of it reaches the scheduler."""
    path, body = request_
    answer = post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "bad_request")
    assert allowed in error["message"]
    assert repr(body.get(field, "weight_update_group")) in error["message"]
    assert calls == []


def test_what_sglang_takes(post: Post, calls: list[str]) -> None:
    """All its formats, in its spelling; backends for all devices or each."""
    formats = [None, "AUTO", *(one.value for one in LoadFormat if one.value != "private")]
    backends = ("nccl", "gloo", "NCCL", "cpu:gloo,cuda:nccl")
    good = [disk(own) for own in formats]
    good += [tensor(own) for own in (None, "direct", "flattened_bucket", "own.loader")]
    good += [("/init_weights_update_group", GROUP | {"backend": own}) for own in backends]
    for path, body in good:
        assert post(path, body).status_code == 200, body
    assert calls == [path[1:] for path, _ in good]


def test_a_group_is_known_while_it_is_there(post: Post) -> None:
    """From the answer that made it, until it is destroyed."""
    update = "/update_weights_from_distributed", WEIGHTS | {"group_name": "g"}
    assert post("/init_weights_update_group", GROUP | {"group_name": "g"}).status_code == 200
    assert post(*update).status_code == 200
    assert post("/destroy_weights_update_group", {"group_name": "g"}).status_code == 200
    assert post(*update).status_code == 400


def test_who_may_call_them(app: FastAPI) -> None:
    """SGLang reads it from the route that answers."""
    added = [route for route in app.router.routes if isinstance(route, APIRoute)]
    assert len(added) == 5
    assert {route.endpoint._auth_level for route in added} == {AuthLevel.ADMIN_OPTIONAL}  # type: ignore[attr-defined]
