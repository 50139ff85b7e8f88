"""Requests that end a stock server, as the compatibility page lists them. One that no longer does needs no check."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tessera_testing.marks import is_installed
from tessera_testing.pool import MakeServer
from tessera_testing.tiny import TINY
from tessera_testing.waiting import wait_until

DISABLED = {"TESSERA_DISABLE": "1"}
UPDATE = {"names": ["a"], "dtypes": ["float32"], "shapes": [[1]], "group_name": "unknown"}


def sampled(**params: Any) -> tuple[str, dict[str, Any]]:
    """A request with these sampling parameters."""
    params = {"max_new_tokens": 4, "temperature": 1, **params}
    return "/generate", {"input_ids": [5, 6, 7], "sampling_params": params}


def prompt(**fields: Any) -> tuple[str, dict[str, Any]]:
    """A request with these fields."""
    return "/generate", {"sampling_params": {"max_new_tokens": 4}, **fields}


ENDING = {
    "type": (sampled(max_new_tokens=2.5), "<0.5.22"),
    "bias": (sampled(logit_bias={"5": 1e39}), ""),
    "penalty": (sampled(repetition_penalty=1e-39), ""),
    "integer": (sampled(top_k=2**40), ""),
    "stop token": (sampled(stop_token_ids=[-5], min_new_tokens=2), ""),
    "token id": (prompt(input_ids=[5, 99_999_999]), ""),
    "no ids": (prompt(input_ids=[[]]), ""),
    "no text": (prompt(text=[""]), ">=0.5.22"),
    "lists": (prompt(input_ids=[5, 6], return_logprob=True, top_logprobs_num=[1, 2]), ""),
    "overrides": (prompt(input_ids=[5, 6], positional_embed_overrides=[]), ""),
    "format": (("/update_weights_from_disk", {"model_path": str(TINY), "load_format": "unknown"}), ""),
    "group": (("/update_weights_from_distributed", UPDATE), "<0.5.22"),
}
"""Route and body of each, and the versions of SGLang that it ends."""


@pytest.mark.full
@pytest.mark.parametrize("name", ENDING)
def test_a_request_that_ends_stock_sglang(make_server: MakeServer, name: str) -> None:
    """Or is refused, where it does not end this version."""
    (path, body), specifier = ENDING[name]
    with make_server(TINY, env=DISABLED) as server:
        if not is_installed(specifier):
            assert httpx.post(f"{server.url}{path}", json=body, timeout=60).status_code == 400
            return
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{server.url}{path}", json=body, timeout=60)
        wait_until(lambda: server.exit_code is not None, 60)
