"""The forward: every token's hidden state goes to its KV slot."""

from __future__ import annotations

from typing import Any

from tessera_patches import runtime


def write_rows(output: Any, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``ModelRunner.forward``, still on the forward stream: before any later replay can overwrite the states."""
    if runtime.rows is None or runner.is_draft_worker or forward_batch.forward_mode.is_idle():
        return
    runtime.rows.write(forward_batch.out_cache_loc, output.logits_output.hidden_states)
