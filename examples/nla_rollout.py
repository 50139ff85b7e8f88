"""Rollouts of slime whose prompts carry activations: ``--custom-generate-function-path nla_rollout.generate``.

Each sample has ``metadata["activations"]``, an ``[n, width]`` tensor or array on the CPU, and ``metadata["marker"]``,
the id of the token that marks their places in the prompt. Servers need ``--enable-injection``: give it by
``TESSERA_ARGS``. The address is a server's, or that of a balancer that does not parse bodies; SGLang's router drops the
vectors.
"""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import httpx
import numpy as np
from transformers import AutoTokenizer


@cache
def tokenizer(folder: str) -> Any:
    """The model's, by slime's ``--hf-checkpoint``."""
    return AutoTokenizer.from_pretrained(folder)


def overrides(prompt: list[int], activations: Any, marker: int) -> dict[str, Any]:
    """The vectors as a field of ``/generate``: in place of the marker's tokens, in order, each as long as theirs."""
    vectors = np.ascontiguousarray(activations, "<f4")
    return {
        "positions": [place for place, token in enumerate(prompt) if token == marker],
        "embeds": base64.b64encode(vectors.tobytes()).decode(),
        "shape": list(vectors.shape),
        "dtype": "float32",
        "scale": "norm-matched",
    }


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Complete one sample, as slime's own ``generate`` does; one that was begun before goes on.

    Raises:
        httpx.HTTPStatusError: the server refused the request.
        RuntimeError: something on the way dropped the vectors.
    """
    if not sample.tokens:
        sample.tokens = tokenizer(args.hf_checkpoint).encode(sample.prompt, add_special_tokens=False)
    prompt = sample.tokens[: len(sample.tokens) - sample.response_length]
    body = {
        "sampling_params": {
            **sampling_params,
            "max_new_tokens": sampling_params["max_new_tokens"] - sample.response_length,
        },
        "return_logprob": True,
        "input_ids": sample.tokens,
        "input_embed_overrides": overrides(prompt, sample.metadata["activations"], sample.metadata["marker"]),
    }
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    async with httpx.AsyncClient(timeout=3600) as client:
        answer = (await client.post(url, json=body)).raise_for_status().json()
    meta = answer["meta_info"]
    if meta.get("injected") != len(sample.metadata["activations"]):
        raise RuntimeError(f"{url} answered without the vectors: is this SGLang's router?")
    found = meta["output_token_logprobs"]
    sample.append_response_tokens(
        args,
        tokens=[token for _, token, _ in found],
        log_probs=[logprob for logprob, _, _ in found],
        trainable=True,
        meta_info=meta,
        text=answer["text"],
    )
    return sample
