"""What is taken out of a prover's output."""

from __future__ import annotations

import pytest

from lean_tactics import deepseek_chat, first_tactic, tactic_prompt
from tessera.client.extract import first_line


@pytest.mark.parametrize(
    ("output", "tactic"),
    [
        ("intro h", "intro h"),
        ("  intro h  \n", "intro h"),
        ("intro h\nexact h", "intro h"),
        ("```lean4\nintro h\nexact h\n```", "intro h"),
        ("Here it is:\n```lean\n  ring\n```\nDone.", "ring"),
        ("```lean4\nomega", "omega"),
        ("-- we introduce h\nintro h", "intro h"),
        ("/- first\n   the case -/\nintro h", "intro h"),
        ("/- one line -/\nintro h", "intro h"),
        ("intro h -- why", "intro h -- why"),
        ("theorem x : p := by\n  trivial", "trivial"),
        ("theorem x : p := by trivial", "trivial"),
        ("lemma x : a = a := by\n  intro h\n  exact h", "intro h"),
        ("example : 1 = 1 := by rfl", "rfl"),
        ("have h : a = b := by\n  ring\n  simp\nexact h", "have h : a = b := by\n  ring\n  simp"),
        ("  have h := by\n    ring\n  exact h", "have h := by\n  ring"),
        ("simp [a,\nb]\nring", "simp [a,\nb]"),
        ("· intro h\n  exact h\n· simp", "intro h\n  exact h"),
        ("\t\n\n  nlinarith [sq_nonneg (a - b)]", "nlinarith [sq_nonneg (a - b)]"),
        ("", None),
        ("  \n-- nothing\n", None),
        ("```lean4\n```", None),
        ("/- never closed\nintro h", None),
        ("theorem x : p := by", None),
    ],
)
def test_first_tactic(output: str, tactic: str | None) -> None:
    """Fences, comments, declarations, blocks, brackets."""
    assert first_tactic(output) == tactic


def test_first_line() -> None:
    """Of text, if there is any."""
    assert first_line("\n  a b \nc") == "a b"
    assert first_line(" \n") is None


def test_prompt() -> None:
    """DeepSeek's template, character by character: special tokens are never written with ASCII look-alikes."""
    bar, line = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"
    begin = f"<{bar}begin{line}of{line}sentence{bar}>"
    assert deepseek_chat("x") == f"{begin}<{bar}User{bar}>x<{bar}Assistant{bar}>"
    assert tactic_prompt("n : Nat\n⊢ n + 0 = n") == deepseek_chat(
        "Complete the following Lean 4 code:\n\n```lean4\n/- tactic state:\nn : Nat\n⊢ n + 0 = n\n-/\n```"
    )
