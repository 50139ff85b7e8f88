"""A Hugging Face model in this process: from a prompt to tokens, and from tokens to hidden states."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.client.errors import Unsupported
from tessera.client.options import Prompt
from tessera.client.results import Floats
from tessera.errors import BadRequest, Described
from tessera.installing import install


class LocalModel:
    """Weights and tokenizer, on the GPU if there is one, else in float32 on the CPU.

    Args:
        model: folder, or name in the Hugging Face cache.

    Raises:
        Unsupported: torch or transformers is not installed, or the model cannot be loaded.
    """

    def __init__(self, model: str | Path) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise Unsupported(
                f"a local model needs torch and transformers ({error}); {install('local')}; a server is named "
                "by its URL, http://…"
            ) from error
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = "auto" if self.device == "cuda" else torch.float32
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
            self.weights: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(self.device).eval()
        except (OSError, ValueError) as error:
            raise Unsupported(f"transformers cannot load {model}: {error}") from error

    @property
    def hidden_size(self) -> int:
        """The model's hidden size, H."""
        return int(self.weights.config.hidden_size)

    def tokens(self, prompt: Prompt, name: str) -> list[int]:
        """Token ids of a prompt, as a server takes it.

        Raises:
            BadRequest: none at all, one that does not exist, or more than the context.
        """
        ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        vocabulary, context = self.weights.config.vocab_size, self.weights.config.max_position_embeddings
        if not ids or min(ids) < 0 or max(ids) >= vocabulary:
            raise BadRequest(name, prompt, f"a text that is not empty, or token ids from 0 to {vocabulary - 1}")
        if len(ids) > context:
            raise BadRequest(name, Described(f"{len(ids)} tokens"), f"at most {context}, the model's context")
        return ids

    def states(self, batch: Sequence[Sequence[int]]) -> list[Floats]:
        """Last-layer states after the final norm, ``[n, H]`` float32 for each sequence of token ids."""
        torch = self.torch
        width = max(map(len, batch))
        # Padding on the right stands behind every token of its sequence: a causal model does not see it.
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in batch], device=self.device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch], device=self.device)
        with torch.inference_mode():
            output = self.weights.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
        states = output.last_hidden_state.float().cpu().numpy()
        return [states[i, : len(row)] for i, row in enumerate(batch)]
