"""POST /generate, as tests do."""

from __future__ import annotations

import random
from typing import Any

import httpx

from tessera.launching.server import Server


def generate(server: Server, prompt: Any, tokens: int, sampling: dict[str, Any] | None = None, **fields: Any) -> Any:
    """The answer to a prompt of token ids, or the list of those to several prompts in one body.

    Greedily, and to the last of ``tokens``, unless ``sampling`` says otherwise; ``fields`` are the body's. With None as
    a prompt a field has it.
    """
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True, **(sampling or {})}
    body = {"sampling_params": params, **fields}
    if prompt is not None:
        body["input_ids"] = prompt
    response = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    if response.status_code != httpx.codes.OK:
        raise RuntimeError(f"HTTP {response.status_code}: {response.text}")
    return response.json()


def fresh_prompt(family: str, length: int, seed: int) -> list[int]:
    """Token ids that no other test has sent: the first of its kind is cold."""
    chooser = random.Random(f"{family} {seed}")
    return [chooser.randrange(8, 1000) for _ in range(length)]
