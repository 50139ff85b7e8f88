"""TOPLOC from end to end: generate with fingerprints, verify the response, tamper with it, verify again.

    SGLANG_URL=http://127.0.0.1:30000 python examples/minimal_fingerprints.py

The server needs --toploc-verification or --enable-return-hidden-states. Here it verifies its own response; elsewhere a
second server of the same model does. See docs/guide/fingerprints.md.
"""

from __future__ import annotations

import os
from typing import Any

import httpx

URL = os.environ.get("SGLANG_URL", "http://127.0.0.1:30000")


def generate(question: str) -> Any:
    """One choice of a chat, with its fingerprints and exact token ids."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 48,
        "temperature": 0,
        "return_toploc_fingerprints": True,
        "return_input_ids": True,
        "return_output_ids": True,
    }
    answer = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=60)
    return answer.raise_for_status().json()["choices"][0]


def verify(input_ids: list[int], output_ids: list[int], fingerprints: list[str]) -> str:
    """The verdict on these tokens and fingerprints, and why."""
    claim = {"input_ids": input_ids, "output_ids": output_ids, "fingerprints": fingerprints}
    answer = httpx.post(f"{URL}/v1/toploc/verify", json={"claims": [claim]}, timeout=60)
    (result,) = answer.raise_for_status().json()["results"]
    return f"{result['verdict']} {result['reason']}".rstrip()


def main() -> None:
    """Print the response and three verdicts."""
    choice = generate("Write a function that adds two numbers.")
    fingerprints = choice["message"]["toploc_verification_fingerprints"]
    prompt, response = choice["input_ids"], choice["output_ids"]
    print(f"response: {choice['message']['content']!r}, {len(fingerprints)} fingerprints")
    print("as it was:", verify(prompt, response, fingerprints))
    print("another response:", verify(prompt, response[::-1], fingerprints))
    print("another prompt:", verify(prompt[::-1], response, fingerprints))


if __name__ == "__main__":
    main()
