"""Answers the client's HTTP requests with a model in this process."""

import base64
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import httpx
import numpy as np

from tessera import __version__
from tessera.capabilities.embed.options import EmbedOptions
from tessera.capabilities.states.options import StateOptions
from tessera.client.errors import Unsupported
from tessera.client.local_decode import Decoder, Running
from tessera.client.local_model import LocalModel
from tessera.client.local_rows import embed_options, pool, select, span_rows, state_options
from tessera.client.local_sampling import LocalSampling
from tessera.client.options import PoolingOptions
from tessera.client.results import Floats
from tessera.errors import BadRequest
from tessera.http.error_body import error_body

TOGETHER = 32
"""Sequences in one forward."""
SERVER_ONLY = {
    "return_toploc_fingerprints": "fingerprints",
    "input_embed_overrides": "inject",
    "lora_path": "lora_path",
    "messages": "messages",
}
"""Fields of requests that only a server has, and the client's options that ask for them."""


class Requested(NamedTuple):
    """What a request to ``/generate`` asks for beside text."""

    logprobs: bool
    states: StateOptions | None
    embedding: EmbedOptions | None


class LocalTransport(httpx.BaseTransport):
    """The transport of `tessera.client.local.LocalClient`.

    Args:
        model: folder of a Hugging Face model, or its name in the local cache.
        seed: of the sampling; None for another each time.

    Raises:
        Unsupported: torch or transformers is not installed, or the model cannot be loaded.
    """

    def __init__(self, model: str | Path, seed: int | None) -> None:
        self._name = str(model)
        self._model = LocalModel(model)
        self._decoder = Decoder(self._model, seed)
        self._lock = Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer as a server does, wrong values with status 400.

        Raises:
            Unsupported: only a server can do that.
        """
        path, body = request.url.path, json.loads(request.read() or b"{}")
        for field, option in SERVER_ONLY.items():
            if body.get(field):
                raise Unsupported(f"a local model cannot do {option}=; leave it out, or connect to a server")
        try:
            if path == "/generate":
                return httpx.Response(200, content=self._generated(body))
            if path == "/v1/embeddings":
                return self._embeddings(body)
        except BadRequest as error:
            return httpx.Response(error.status, json=error_body(error))
        if path == "/server_info":
            own = {"version": __version__, "on": ["rows"], "engine": f"transformers {version('transformers')}"}
            return httpx.Response(200, json={"model_path": self._name, "tessera": own})
        raise Unsupported(f"a local model has no {path}; connect to a server")

    def close(self) -> None:
        """Release the weights."""
        del self._decoder, self._model

    def _generated(self, body: Mapping[str, Any]) -> Iterator[bytes]:
        """Check a request to ``/generate``, and begin its answer."""
        params = dict(body.get("sampling_params", {}))
        n = params.pop("n", 1)
        sampling = LocalSampling.of(params)
        if sampling.max_new_tokens == 0:
            raise Unsupported("max_new_tokens=0 generates nothing; to embed only, call encode")
        given = body.get("text", body.get("input_ids"))
        listed = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        names = [f"prompts[{i}]" for i in range(len(given))] if listed else ["prompt"]
        prompts = [self._model.tokens(one, name) for one, name in zip(given if listed else [given], names, strict=True)]
        requested = Requested(
            bool(body.get("return_logprob")),
            state_options(body.get("return_hidden_states", False)),
            embed_options(body.get("return_embedding", False), self._model.hidden_size),
        )
        if body.get("stream"):
            return self._events(prompts[0], sampling, requested)
        return self._items([ids for ids in prompts for _ in range(n)], sampling, requested, listed=listed)

    def _items(
        self, prompts: list[list[int]], sampling: LocalSampling, requested: Requested, *, listed: bool
    ) -> Iterator[bytes]:
        """JSON, with a space after each token: between them the client may find that its time is over."""
        found = []
        for i in range(0, len(prompts), TOGETHER):
            part = prompts[i : i + TOGETHER]
            sequences: list[Running] = []
            for sequences in self._decoder.decode(part, sampling):  # noqa: B007 - the same ones each time
                yield b" "
            found += [self._item(ids, one, requested) for ids, one in zip(part, sequences, strict=True)]
        yield json.dumps(found if listed else found[0]).encode()

    def _events(self, prompt: list[int], sampling: LocalSampling, requested: Requested) -> Iterator[bytes]:
        """Server-sent events, each with all that was generated so far."""
        shown = ""
        for (one,) in self._decoder.decode([prompt], sampling):
            visible = sampling.visible(one.text, ended=bool(one.finish_reason))
            shown = visible if one.finish_reason else max(shown, visible, key=len)
            yield f"data: {json.dumps(self._item(prompt, one, requested) | {'text': shown})}\n\n".encode()

    def _item(self, prompt: list[int], one: Running, requested: Requested) -> dict[str, Any]:
        meta: dict[str, Any] = {"prompt_tokens": len(prompt), "cached_tokens": 0, "completion_tokens": len(one.ids)}
        meta["finish_reason"] = {"type": one.finish_reason} if one.finish_reason else None
        if one.finish_reason:
            if requested.logprobs:
                meta["output_token_logprobs"] = [
                    (logprob, token, None) for logprob, token in zip(one.logprobs, one.ids, strict=True)
                ]
            try:
                meta |= self._of_rows(prompt, one, requested)
            except BadRequest as error:
                reason = {"status_code": error.status, "message": str(error), "err_type": error.code}
                meta["finish_reason"] = {"type": "abort", **reason}
        return {"text": one.text, "output_ids": one.ids, "meta_info": meta}

    def _of_rows(self, prompt: list[int], one: Running, requested: Requested) -> dict[str, Any]:
        """The fields of ``meta_info`` that are made of hidden states."""
        found: dict[str, Any] = {}
        if requested.states is None and requested.embedding is None:
            return found
        (rows,) = self._model.states([[*prompt, *one.ids[:-1]]])
        if requested.states is not None:
            states = select(rows, len(prompt), requested.states)
            found["hidden_states"] = {"data": _base64(states), "dtype": "float32", "shape": states.shape}
        if requested.embedding is not None:
            span = span_rows(rows, len(prompt), requested.embedding.over)
            embedding = pool(span, requested.embedding) if len(span) else None
            found["embedding"] = None if embedding is None else _base64(embedding.vector)
            found["embedding_tokens"] = 0 if embedding is None else embedding.tokens
            found["embedding_options"] = requested.embedding.applied()
        return found

    def _embeddings(self, body: Mapping[str, Any]) -> httpx.Response:
        given = {name: body[name] for name in PoolingOptions.__annotations__ if body.get(name) is not None}
        options = embed_options(given, self._model.hidden_size) or EmbedOptions()
        inputs = [self._model.tokens(text, f"input[{i}]") for i, text in enumerate(body["input"])]
        with self._lock:  # a long list comes in several requests at once
            parts = [self._model.states(inputs[i : i + TOGETHER]) for i in range(0, len(inputs), TOGETHER)]
        matrix = np.stack([pool(rows, options).vector for part in parts for rows in part])
        headers = {
            "x-tessera-shape": ",".join(map(str, matrix.shape)),
            "x-tessera-prompt-tokens": str(sum(map(len, inputs))),
            "x-tessera-embedding-options": json.dumps(options.applied()),
        }
        return httpx.Response(200, content=matrix.astype("<f4").tobytes(), headers=headers)


def _base64(values: Floats) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()
