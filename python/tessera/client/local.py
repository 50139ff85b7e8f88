"""The same interface over a model in this process, for where there is no server."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, Unpack, cast

import numpy as np

from tessera import __version__
from tessera.capabilities.states.options import StateOptions
from tessera.client import probe
from tessera.client.calls import CANDIDATE_SAMPLING
from tessera.client.candidates import grouped
from tessera.client.chunks import Matrix
from tessera.client.errors import Unsupported
from tessera.client.extract import Extract, whole
from tessera.client.local_decode import Decoder, Running
from tessera.client.local_model import LocalModel
from tessera.client.local_rows import embed_options, pooled, selected, spanned, state_options
from tessera.client.local_sampling import LocalSampling
from tessera.client.options import (
    EncodeOptions,
    GenerateOptions,
    GenerateWithEmbeddingOptions,
    PoolingOptions,
    Prompt,
    SamplingOptions,
    check_known,
)
from tessera.client.progress import Bar
from tessera.client.prompts import as_prompts
from tessera.client.results import (
    Candidate,
    Claim,
    Delta,
    Embedding,
    Embeddings,
    Floats,
    Generation,
    ServerInfo,
    Verdict,
)
from tessera.client.retry import Deadline

TOGETHER = 32
"""Sequences in one forward."""


class LocalClient:
    """A model in this process. Its methods are described in `tessera.client.interface.Inference`.

    Texts, vectors and rows are those of a server with the same weights, within the noise of their dtype; sampling draws
    other random numbers. What only a server has (constrained decoding, penalties, injection, adapters, fingerprints)
    raises `Unsupported`. There is no time limit but ``timeout=``. Not for several threads at once.

    Args:
        model: folder of a Hugging Face model, or its name in the local cache.
        seed: of the sampling; by default another each time.

    Raises:
        Unsupported: torch or transformers is not installed, or the model cannot be loaded.
    """

    def __init__(self, model: str | Path, *, seed: int | None = None) -> None:
        self._name = str(model)
        self._model = LocalModel(model)
        self._decoder = Decoder(self._model, seed)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """See `Inference.generate`."""
        check_known("generate", options, GenerateOptions)
        return self._generate(prompt, dict(options))

    def generate_with_embedding(self, prompt: Prompt, **options: Unpack[GenerateWithEmbeddingOptions]) -> Generation:
        """See `Inference.generate_with_embedding`."""
        check_known("generate_with_embedding", options, GenerateWithEmbeddingOptions)
        rest: dict[str, Any] = dict(options)
        names = (*PoolingOptions.__annotations__, "over")
        how = embed_options({name: rest.pop(name) for name in names if name in rest}, self._model.hidden_size)
        ids = self._model.tokens(prompt)
        generation = self._generate(ids, rest)
        (rows,) = self._model.states([[*ids, *generation.output_ids[:-1]]])
        span = spanned(rows, len(ids), how.over)
        return replace(generation, embedding=pooled(span, how) if len(span) else None)

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Iterator[Delta]:
        """See `Inference.stream`."""
        check_known("generate", options, GenerateOptions)
        return self._stream(prompt, dict(options))

    def generate_candidates(
        self,
        prompt: Prompt,
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Candidate]:
        """See `Inference.generate_candidates`."""
        return self.generate_candidates_batch([prompt], n, extract=extract, timeout=timeout, **sampling)[0]

    def generate_candidates_batch(
        self,
        prompts: Iterable[Prompt],
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[list[Candidate]]:
        """See `Inference.generate_candidates_batch`."""
        check_known("generate_candidates", sampling, SamplingOptions)
        inputs = as_prompts("generate_candidates_batch", "prompts", prompts)
        if n < 1:
            raise ValueError(f"n is {n}; it must be 1 or more")
        read = LocalSampling.of({**CANDIDATE_SAMPLING, **sampling})
        deadline = Deadline(timeout, "generate_candidates_batch")
        flat = [ids for prompt in inputs for ids in [self._model.tokens(prompt)] * n]
        generations = []
        for i in range(0, len(flat), TOGETHER):
            part = flat[i : i + TOGETHER]
            (ended,) = deque(deadline.checked(self._decoder.decode(part, read)), maxlen=1)
            generations += [_generation(ids, one) for ids, one in zip(part, ended, strict=True)]
        return grouped(generations, n, extract)

    def encode(self, text: Prompt, **options: Unpack[EncodeOptions]) -> Embedding:
        """See `Inference.encode`."""
        one = self.encode_batch([text], **options)
        return Embedding(one.matrix[0], one.prompt_tokens)

    def encode_batch(
        self, texts: Iterable[Prompt], *, progress: bool = False, **options: Unpack[EncodeOptions]
    ) -> Embeddings:
        """See `Inference.encode_batch`."""
        check_known("encode_batch", options, EncodeOptions)
        given = as_prompts("encode_batch", "texts", texts)
        rest: dict[str, Any] = dict(options)
        _refuse(rest, "lora_path")
        how = embed_options(rest, self._model.hidden_size)
        inputs = [self._model.tokens(text, f"texts[{i}]") for i, text in enumerate(given)]
        matrix = Matrix(len(inputs))
        bar = Bar("encode", len(inputs), shown=progress)
        for i in range(0, len(inputs), TOGETHER):
            part = inputs[i : i + TOGETHER]
            vectors = np.stack([pooled(rows, how).vector for rows in self._model.states(part)])
            matrix.add(slice(i, i + len(part)), Embeddings(vectors, sum(map(len, part))))
            bar.show(matrix.done)
        return matrix.whole()

    def verify(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Not here: raises `Unsupported`."""
        raise Unsupported(
            f"a local model verifies no fingerprints, so none of these {len(claims)}; connect to a server"
        )

    def health_check(self) -> None:
        """See `Inference.health_check`. A model that was loaded is there."""

    def supports_hidden_states(self) -> bool:
        """See `Inference.supports_hidden_states`."""
        cold, warm = (self.generate("def main(", max_new_tokens=1, temperature=0, hidden_states=True) for _ in range(2))
        return not probe.problem(cold, warm)

    def server_info(self) -> ServerInfo:
        """See `Inference.server_info`."""
        return ServerInfo(self._name, f"transformers {version('transformers')}", __version__, ("rows",))

    def close(self) -> None:
        """Let the weights go."""
        del self._decoder, self._model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _generate(self, prompt: Prompt, options: dict[str, Any]) -> Generation:
        final = None
        for piece in self._stream(prompt, options):
            final = piece.final
        if final is None:
            raise Unsupported("max_new_tokens=0 generates nothing; to embed only, call encode")
        return final

    def _stream(self, prompt: Prompt, options: dict[str, Any]) -> Iterator[Delta]:
        _refuse(options, "fingerprints", "nonce", "inject", "lora_path")
        deadline = Deadline(options.pop("timeout", None), "generate")
        logprobs = options.pop("logprobs", False)
        states = state_options(options.pop("hidden_states", False))
        sampling = LocalSampling.of(cast("SamplingOptions", options))
        ids = self._model.tokens(prompt)
        shown = count = 0
        for (one,) in deadline.checked(self._decoder.decode([ids], sampling)):
            visible = sampling.visible(one.text, ended=bool(one.finish_reason))
            final = _generation(ids, one) if one.finish_reason else None
            if final is not None:
                final = final if logprobs else replace(final, token_logprobs=None)
                final = replace(final, hidden_states=self._rows(ids, one, states))
            yield Delta(visible[shown:], tuple(one.ids[count:]), final)
            shown, count = max(shown, len(visible)), len(one.ids)

    def _rows(self, ids: list[int], one: Running, options: StateOptions | None) -> Floats | None:
        if options is None:
            return None
        (rows,) = self._model.states([[*ids, *one.ids[:-1]]])
        return selected(rows, len(ids), options)


def _refuse(options: dict[str, Any], *names: str) -> None:
    """Take these options out; none of them may be set."""
    for name in names:
        if options.pop(name, None):
            raise Unsupported(f"a local model cannot do {name}=; leave it out, or connect to a server")


def _generation(ids: list[int], one: Running) -> Generation:
    return Generation(
        text=one.text,
        output_ids=tuple(one.ids),
        finish_reason=one.finish_reason,
        prompt_tokens=len(ids),
        token_logprobs=np.array(one.logprobs, np.float32),
    )
