"""The independent reference: Hugging Face transformers in float32, without any cache, one prompt at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class HuggingFace:
    """Hidden states of a model folder, as its authors' own code computes them.

    Args:
        model: folder of a Hugging Face model with its tokenizer.
        bfloat16: compute in bfloat16 instead of float32.
    """

    def __init__(self, model: Path, *, bfloat16: bool = False) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()

        self._torch = torch
        self.model = model
        self._model = AutoModel.from_pretrained(model, dtype=torch.bfloat16 if bfloat16 else torch.float32).eval()
        self._known: dict[tuple[int, ...], Vector] = {}
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)

    def states(self, input_ids: Sequence[int]) -> Vector:
        """``last_hidden_state`` (post final norm) of these tokens, ``[n, H]``. Not to be written to."""
        key = tuple(input_ids)
        if key not in self._known:
            with self._torch.inference_mode():
                output = self._model(input_ids=self._torch.tensor([key]), use_cache=False)
            self._known[key] = output.last_hidden_state[0].double().numpy()
        return self._known[key]

    def favourites(self, input_ids: Sequence[int], edit: Callable[[Any], Any] | None = None) -> list[int]:
        """The likeliest next token after each of these, for a model whose output matrix is its embedding.

        With ``edit``, as in `edited`.
        """
        states = self.states(input_ids) if edit is None else self.edited(input_ids, edit)
        return [int(token) for token in self.logits(states).argmax(1)]

    def logits(self, states: Vector) -> Vector:
        """``[n, V]`` after each of the states ``[n, H]``, for a model whose output matrix is its embedding."""
        return np.asarray(states @ self.embeddings().astype(np.float64).T)

    def shortfall(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """How far below the best logit a generated token is at most, given all before it; models as in `favourites`."""
        scores = self.logits(self.states([*prompt, *output[:-1]]))[len(prompt) - 1 :]
        return float((scores.max(1) - scores[range(len(output)), list(output)]).max())

    def penalized(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        *,
        frequency: float = 0.0,
        presence: float = 0.0,
        repetition: float = 1.0,
        barred: Sequence[int] = (),
        least: int = 0,
    ) -> Vector:
        """The logits ``[m, V]`` of each of m generated tokens, for models as in `favourites`.

        With what each earlier one of them takes off: ``frequency`` each time, ``presence`` at all, and ``repetition``
        divides a positive logit, or multiplies another. Of ``barred`` tokens none comes before there are ``least``.
        """
        found = self.logits(self.states([*prompt, *output[:-1]]))[len(prompt) - 1 :]
        counts = np.zeros(found.shape[1])
        for place, token in enumerate(output):
            row = found[place] - frequency * counts - presence * (counts > 0)
            row[list(barred)] = np.where(place < least, -np.inf, row[list(barred)])
            found[place] = np.where(counts == 0, row, np.where(row < 0, row * repetition, row / repetition))
            counts[token] += 1
        return found

    def probabilities(
        self,
        input_ids: Sequence[int],
        temperature: float,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> Vector:
        """Of each token of the vocabulary after each of these, ``[n, V]``, for models as in `favourites`; `cut`."""
        scores = self.logits(self.states(input_ids)) / temperature
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return truncate(weights / weights.sum(axis=1, keepdims=True), top_k, top_p, min_p)

    def edited(self, input_ids: Sequence[int], edit: Callable[[Any], Any]) -> Vector:
        """The same rows after an edit of the embeddings: ``edit`` gets them as ``[n, H]`` float32 and returns them."""
        with self._torch.inference_mode():
            output = self._model(inputs_embeds=edit(self._embed(input_ids).clone())[None], use_cache=False)
        states: Vector = output.last_hidden_state[0].double().numpy()
        return states

    def logprobs(self, input_ids: Sequence[int], edit: Callable[[Any], Any]) -> Vector:
        """Of each token but the first, after all before it; ``[n - 1]``, with the edit as in `edited`.

        For a model whose output matrix is its embedding, as `favourites`.
        """
        scores = self.logits(self.edited(input_ids, edit)[:-1])
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        found: Vector = scores[range(len(input_ids) - 1), list(input_ids[1:])]
        return found

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """The model's weights by name, to be changed before any state is asked for."""
        return iter(self._model.named_parameters())

    def embeddings(self) -> npt.NDArray[np.float32]:
        """The table of the embedding layer, ``[V, H]``."""
        table: npt.NDArray[np.float32] = self._model.get_input_embeddings().weight.detach().numpy()
        return table

    def embedded(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """What the embedding layer gives for these tokens, ``[N, H]``: some models scale the table."""
        with self._torch.inference_mode():
            vectors: npt.NDArray[np.float32] = self._embed(ids).numpy()
        return vectors

    def _embed(self, ids: Sequence[int]) -> Any:
        return self._model.get_input_embeddings()(self._torch.tensor(list(ids)))

    def pooled(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        pooling: str,
        over: str,
        edit: Callable[[Any], Any] | None = None,
    ) -> Vector:
        """The vector ``[H]`` that ``return_embedding`` must give: ``output`` are all generated tokens.

        The last of them was never fed to the model, so it has no state. ``edit`` as in `edited`.
        """
        ids = [*prompt, *output[:-1]]
        states = self.states(ids) if edit is None else self.edited(ids, edit)
        rows = {"prompt": states[: len(prompt)], "output": states[len(prompt) :], "all": states}[over]
        pooled: Vector = {"mean": rows.mean(0), "max": rows.max(0), "first": rows[0], "last": rows[-1]}[pooling]
        return pooled


def truncate(p: Vector, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0) -> Vector:
    """Rows of probabilities ``[n, V]`` of which those are left that SGLang's sampler leaves, added up to 1.

    The ``top_k`` likeliest, no more of them than it takes to have the share ``top_p`` of all, and none with less than
    ``min_p`` of the greatest probability.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    ordered[(ordered.cumsum(axis=1) - ordered >= top_p) & (top_p < 1)] = 0
    ordered[:, top_k or p.shape[1] :] = 0
    ordered[ordered < min_p * ordered[:, :1]] = 0
    left = np.zeros_like(p)
    np.put_along_axis(left, order, ordered, axis=1)
    return np.asarray(left / left.sum(axis=1, keepdims=True))


def relative_error(found: npt.ArrayLike, expected: Vector) -> float:
    """Euclidean distance over the length of what was expected."""
    return float(np.linalg.norm(np.asarray(found, np.float64) - expected) / np.linalg.norm(expected))


def cosine(found: npt.ArrayLike, expected: Vector) -> float:
    """Cosine of the angle between both."""
    vector = np.asarray(found, np.float64)
    return float(vector @ expected / np.linalg.norm(vector) / np.linalg.norm(expected))
