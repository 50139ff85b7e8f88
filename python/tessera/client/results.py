"""What calls return. Arrays are numpy's; ``numpy()`` gives the one that a result stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tessera.client.injection import Injection

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """One vector.

    Attributes:
        vector: ``[H]`` float32.
        tokens: how many rows were pooled to it.
    """

    vector: Floats
    tokens: int

    def numpy(self) -> Floats:
        """``[H]`` float32."""
        return self.vector

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.vector, dtype, copy=copy)


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings(Sequence[Floats]):
    """The vectors of a batch, in the order of its texts.

    Attributes:
        matrix: ``[n, H]`` float32.
        prompt_tokens: how many tokens the texts have together.
    """

    matrix: Floats
    prompt_tokens: int

    def numpy(self) -> Floats:
        """``[n, H]`` float32."""
        return self.matrix

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.matrix, dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, index: Any) -> Any:
        return self.matrix[index]


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One generated text.

    Attributes:
        text: what was generated.
        output_ids: its token ids, the stop token included.
        finish_reason: why it ended, for example ``stop`` or ``length``.
        prompt_tokens: how many tokens the prompt has.
        cached_tokens: how many of them came from the prefix cache.
        token_logprobs: ``[len(output_ids)]`` float32, the log-probability of each generated token under the model at
            the request's temperature; None where not asked for.
        embedding: by ``generate_with_embedding``; None otherwise, and where no row was there to pool.
        hidden_states: ``[rows, H]`` float32 (bfloat16 widened, which is exact); None where not asked for.
        input_ids: the prompt's token ids, with ``fingerprints``.
        fingerprints: TOPLOC fingerprints of prompt and output, base64; None where not asked for.
        meta: the server's ``meta_info``, as it came.
    """

    text: str
    output_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int = 0
    token_logprobs: Floats | None = None
    embedding: Embedding | None = None
    hidden_states: Floats | None = None
    input_ids: tuple[int, ...] | None = None
    fingerprints: tuple[str, ...] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def log_prob(self) -> float | None:
        """Sum of `token_logprobs`: the log-probability of the whole text."""
        return None if self.token_logprobs is None else float(self.token_logprobs.sum(dtype=np.float64))

    def numpy(self) -> Floats | None:
        """The array that was asked for: the embedding's vector, else the hidden states, else None."""
        return self.hidden_states if self.embedding is None else self.embedding.vector


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a stream.

    Attributes:
        text: what came since the piece before.
        output_ids: its token ids.
        final: the whole generation, with the last piece; None before.
    """

    text: str
    output_ids: tuple[int, ...]
    final: Generation | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several continuations of a prompt.

    Attributes:
        text: what ``extract`` made of the generated text.
        log_prob: summed log-probability of all generated tokens, at the temperature that they were drawn with; the
            greatest of those with the same `text`.
        output_ids: the generated token ids.
        finish_reason: why it ended.
        raw: the generated text.
    """

    text: str
    log_prob: float
    output_ids: tuple[int, ...]
    finish_reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What a prover says that it computed: exact token ids, and the fingerprints of that computation.

    Attributes:
        input_ids: of the prompt.
        output_ids: of what was generated.
        fingerprints: base64.
        nonce: the verifier's, if the prover was given one.
        inject: what was put into the embeddings of the prompt; positions and tokens are looked for in ``input_ids``.
        lora_path: the adapter that it was computed with, by its name on the verifying server.
    """

    input_ids: Sequence[int]
    output_ids: Sequence[int]
    fingerprints: Sequence[str]
    nonce: str | None = None
    inject: Injection | Sequence[Injection] | None = None
    lora_path: str | None = None

    @classmethod
    def of(
        cls,
        generation: Generation,
        nonce: str | None = None,
        inject: Injection | Sequence[Injection] | None = None,
        lora_path: str | None = None,
    ) -> Claim:
        """From a generation that was made with ``fingerprints=True``, and with this nonce, injection and adapter.

        Raises:
            ValueError: it has none.
        """
        if generation.fingerprints is None or generation.input_ids is None:
            raise ValueError("this generation has no fingerprints: generate it with fingerprints=True")
        return cls(generation.input_ids, generation.output_ids, generation.fingerprints, nonce, inject, lora_path)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier says of one claim.

    Attributes:
        verdict: ``unverifiable`` is neither a pass nor a fail.
        reason: why it is no pass.
        details: the verifier's whole answer: statistics and the thresholds used.
    """

    verdict: Literal["pass", "fail", "unverifiable"]
    reason: str
    details: Mapping[str, Any]

    def __bool__(self) -> bool:
        return self.verdict == "pass"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers.

    Attributes:
        model: path or name of the model.
        engine: what generates, and its version.
        tessera: version of Tessera there; None for a stock server.
        features: what is switched on, for example ``rows``.
        raw: the server's answer, as it came.
    """

    model: str
    engine: str
    tessera: str | None
    features: tuple[str, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
