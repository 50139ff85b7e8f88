"""Are a server's hidden states right? The same prompt twice: computed, and then mostly from the prefix cache."""

import secrets

import numpy as np

from tessera.client.results import Generation

MOST_DIFFERENCE = 0.05
"""Relative difference between a row and itself from the cache: ten times the noise of bfloat16 on a deep model."""


def fresh_prompt() -> str:
    """A text that no prefix cache holds any part of."""
    return secrets.token_hex(64)


def problem(cold: Generation, warm: Generation) -> str:
    """What is wrong with the rows of two equal requests for one token; "" if nothing."""
    for name, found in (("first", cold), ("second, cached", warm)):
        rows = found.hidden_states
        if rows is None or len(rows) != found.prompt_tokens:
            return f"{0 if rows is None else len(rows)} rows came with the {name} answer, not {found.prompt_tokens}"
        if not np.isfinite(rows).all():
            return f"the {name} answer holds NaN or infinity"
        if not np.linalg.norm(rows, axis=1).all():
            return f"the {name} answer holds rows of zeros"
    if cold.hidden_states is None or warm.hidden_states is None:
        return "no rows came"
    distance = np.linalg.norm(cold.hidden_states - warm.hidden_states, axis=1)
    worst = float((distance / np.linalg.norm(cold.hidden_states, axis=1)).max())
    return f"rows from the cache differ by {worst:.1%}" if worst > MOST_DIFFERENCE else ""
