"""What every client can do, whatever does the work: a server over HTTP, or a model in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, Self, Unpack

from tessera.client.extract import Extract, whole
from tessera.client.options import (
    ChatOptions,
    EncodeOptions,
    GenerateOptions,
    GenerateWithEmbeddingOptions,
    Messages,
    Prompt,
    SamplingOptions,
)
from tessera.client.results import (
    Candidate,
    Claim,
    Delta,
    Embedding,
    Embeddings,
    Generation,
    ServerInfo,
    Verdict,
)


class Inference(Protocol):
    """Generate, embed, verify. Every method raises `tessera.client.errors.ClientError`.

    `tessera.client.Client` and `tessera.client.LocalClient` have these methods, `tessera.client.AsyncClient` the same
    as coroutines. Options are those of `tessera.client.options`; one that a method does not have is a ``TypeError``.
    """

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """One continuation of a prompt."""

    def generate_with_embedding(self, prompt: Prompt, **options: Unpack[GenerateWithEmbeddingOptions]) -> Generation:
        """One continuation, and the embedding of the same tokens, from one request."""

    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Generation:
        """The answer to a chat, which the server writes with the model's chat template.

        Without ``max_new_tokens`` it goes on to its end. ``cached_tokens`` is 0 unless the server runs with
        ``--enable-cache-report``; ``meta`` has the choice and its message: tool calls and reasoning, if it has some.
        """

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Iterator[Delta]:
        """One continuation, piece by piece; the last piece has the whole `Generation`.

        A stream is started again if the connection fails before its first piece, and never after.
        """

    def generate_candidates(
        self,
        prompt: Prompt,
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Candidate]:
        """At most n different continuations of one prompt, the most probable first."""

    def generate_candidates_batch(
        self,
        prompts: Iterable[Prompt],
        n: int,
        *,
        extract: Extract = whole,
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[list[Candidate]]:
        """At most n different continuations of each prompt, the most probable first, by one request for all.

        Args:
            prompts: all texts or all token ids, in a list or whatever can be gone through. None at all sends nothing.
            n: how many are generated for each.
            extract: from a generated text to the candidate in it, for example
                `tessera.client.extract.first_line`. What it drops, and what it makes equal, is not there.
            timeout: seconds for this call instead of `Timeouts.batch`.
            **sampling: by default temperature 0.6, top_p 0.95, max_new_tokens 128.
        """

    def encode(self, text: Prompt | Messages, **options: Unpack[EncodeOptions]) -> Embedding:
        """The embedding of one text, or of one chat: by default the mean over its tokens."""

    def encode_batch(
        self, texts: Iterable[Prompt], *, progress: bool = False, **options: Unpack[EncodeOptions]
    ) -> Embeddings:
        """The embeddings of many texts, in their order; a long list goes in several requests.

        Args:
            texts: all texts or all token ids, in a list or whatever can be gone through.
            progress: draw a bar on standard error.
            **options: as `encode`.
        """

    def verify(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Whether each claim was computed by this model, with one prefill for each (docs/guide/fingerprints.md)."""

    def health_check(self) -> None:
        """Return if a token can be generated now, with this key; raise at once, without another try, if not."""

    def supports_hidden_states(self) -> bool:
        """Whether hidden states come, and are right: those of a new prompt, and again when it is cached."""

    def server_info(self) -> ServerInfo:
        """Who answers: model, versions, what is switched on."""

    def close(self) -> None:
        """Let connections or the model go; also done by ``with``."""

    def __enter__(self) -> Self:
        """Return the client itself."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Close the client."""
