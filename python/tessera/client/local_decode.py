"""Generate tokens with a model in this process, for several prompts together.

Not by transformers' ``generate``: it streams one prompt, from a thread of its own, and keeps the scores of the whole
vocabulary for each step, from which log-probabilities before top-k and top-p would be taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.client.local_model import LocalModel
from tessera.client.local_sampling import LocalSampling


@dataclass(slots=True)
class Running:
    """One sequence while it is generated; ``finish_reason`` is empty until it has ended."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""


class Decoder:
    """Draws tokens.

    Args:
        model: whose.
        seed: of the random numbers; None for others each time.
    """

    def __init__(self, model: LocalModel, seed: int | None) -> None:
        self._model = model
        self._torch = model.torch
        self._random = self._torch.Generator(model.device)
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(seed)

    def decode(self, prompts: Sequence[Sequence[int]], sampling: LocalSampling) -> Iterator[list[Running]]:
        """Yield the sequences after each step, the same objects each time, until all have ended."""
        torch, device = self._torch, self._model.device
        running = [Running() for _ in prompts]
        width = max(map(len, prompts))
        step = torch.tensor([[0] * (width - len(row)) + list(row) for row in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts], device=device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = None
        for number in range(sampling.max_new_tokens):
            with torch.inference_mode():
                output = self._model.weights(
                    input_ids=step,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                tokens, logprobs = self._choose(output.logits[:, -1].float(), sampling, number)
            cache = output.past_key_values
            for sequence, token, logprob in zip(running, tokens.tolist(), logprobs.tolist(), strict=True):
                if not sequence.finish_reason:
                    self._append(sequence, token, logprob, sampling)
            yield running
            if all(sequence.finish_reason for sequence in running):
                return
            step = tokens[:, None]
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            positions = positions[:, -1:] + 1

    def _choose(self, logits: Any, sampling: LocalSampling, number: int) -> tuple[Any, Any]:
        """Next tokens ``[B]`` and their log-probabilities at the request's temperature, before top-k, top-p, min-p."""
        torch = self._torch
        if number < sampling.min_new_tokens:
            logits[:, list(self._ends(sampling))] = -torch.inf
        logprobs = (logits if sampling.greedy else logits / sampling.temperature).log_softmax(-1)
        if sampling.greedy:
            tokens = logprobs.argmax(-1)
        else:
            tokens = torch.multinomial(self._filtered(logprobs.exp(), sampling), 1, generator=self._random)[:, 0]
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]

    def _filtered(self, probabilities: Any, sampling: LocalSampling) -> Any:
        """Zero for what top-k, top-p and min-p leave out; not normalized again."""
        torch = self._torch
        ordered, order = probabilities.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        out = (before > sampling.top_p) | (ordered < sampling.min_p * ordered[:, :1])
        if sampling.top_k > 0:
            out |= torch.arange(ordered.shape[1], device=ordered.device) >= sampling.top_k
        return torch.zeros_like(ordered).scatter(1, order, ordered.masked_fill(out, 0.0))

    def _append(self, sequence: Running, token: int, logprob: float, sampling: LocalSampling) -> None:
        sequence.ids.append(token)
        sequence.logprobs.append(logprob)
        ended = token in self._ends(sampling)
        ids = sequence.ids[:-1] if ended else sequence.ids
        text = self._model.tokenizer.decode(ids, skip_special_tokens=sampling.skip_special_tokens)
        begins = [place for stop in sampling.stop if (place := text.find(stop)) >= 0]
        sequence.text = text[: min(begins)] if begins else text
        if ended or begins:
            sequence.finish_reason = "stop"
        elif len(sequence.ids) == sampling.max_new_tokens:
            sequence.finish_reason = "length"

    def _ends(self, sampling: LocalSampling) -> set[int]:
        """Ids of the tokens that end a text."""
        if sampling.ignore_eos:
            return set()
        weights = self._model.weights
        known = (weights.generation_config.eos_token_id, weights.config.eos_token_id)
        ends = {item for ids in known for item in (ids if isinstance(ids, list) else [ids])}
        return (ends | {self._model.tokenizer.eos_token_id, *sampling.stop_token_ids}) - {None}
