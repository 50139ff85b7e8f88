"""What a benchmark needs besides servers: the host's ceiling, texts of a given length, Hugging Face's own model."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any

import torch


def matrix_ceiling(size: int = 8192, seconds: float = 2.0) -> float:
    """Floating-point operations a second of a large bfloat16 matrix product, the best of several spells."""
    if not torch.cuda.is_available():
        size, seconds = 512, 0.2
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(20):
            a @ b
        _wait()
        best = max(best, 20 * 2 * size**3 / (time.perf_counter() - begin))
    return best


def parameters(model: Path) -> int:
    """How many the model has, by its configuration."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return int(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).num_parameters())


class Texts:
    """Texts of about a given number of tokens, each different from its first token on, so that none is cached.

    Args:
        model: folder with the tokenizer.
        tokens: how many.
    """

    def __init__(self, model: Path, tokens: int) -> None:
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        words = " ".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
        ids = tokenizer(words, add_special_tokens=False)["input_ids"]
        starts = range(0, len(ids) - tokens, max(tokens // 4, 1))
        self._texts = [tokenizer.decode(ids[start : start + tokens - 6]) for start in starts]
        self._numbers = itertools.count(10**8)
        self._chooser = random.Random(1)

    def fresh(self) -> str:
        """One that was never sent."""
        return f"{self._chooser.randrange(10**6)} {next(self._numbers)} {self._chooser.choice(self._texts)}"


def hugging_face(model: Path, tokens: int, batch: int, seconds: float) -> float:
    """Prompts a second whose mean Hugging Face's model of this shape computes (random weights, bfloat16, sdpa)."""
    from transformers import AutoConfig, AutoModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        own = AutoModel.from_config(AutoConfig.from_pretrained(model), dtype=torch.bfloat16).eval()
        ids = torch.randint(5, 900, (batch, tokens))
    done, begin = 0, 0.0
    with torch.inference_mode():
        for number in itertools.count():
            if number == 2:  # two to warm up
                begin = time.perf_counter()
            own(input_ids=ids, use_cache=False).last_hidden_state.float().mean(1).cpu()
            done = number - 1
            if number > 2 and time.perf_counter() - begin > seconds:
                break
    return done * batch / (time.perf_counter() - begin)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
