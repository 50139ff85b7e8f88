"""Events on the current stream, which is looked up once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime import driver

from tessera.tilespec import streams


def test_a_stream_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its device and address: two devices' default streams have one address."""
    now = {"device": 0, "stream": 0}
    looked_up: list[str] = []

    def current_stream() -> str:
        looked_up.append(f"{now['device']}/{now['stream']}")
        return looked_up[-1]

    monkeypatch.setattr(streams, "_known", {})
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_stream=lambda _: now["stream"]))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now["device"])
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    recorded: list[Any] = []
    event: Any = SimpleNamespace(record=recorded.append)
    places = (0, 0), (0, 7), (1, 0), (0, 0), (0, 7), (1, 0)
    for now["device"], now["stream"] in places:
        streams.record(event)
    assert recorded == [f"{device}/{stream}" for device, stream in places]
    assert len(looked_up) == 3
