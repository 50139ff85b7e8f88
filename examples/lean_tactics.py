r"""Tactics for a Lean 4 proof state from DeepSeek-Prover-V2, ranked, and the state's embedding, from one server.

    SGLANG_URL=http://127.0.0.1:30000 python examples/lean_tactics.py $'n : Nat\n⊢ n + 0 = n'

The prompt is the one that the model was trained on; `first_tactic` takes the tactic out of what it answers.
"""

from __future__ import annotations

import os
import sys

from tessera.client import connect

URL = os.environ.get("SGLANG_URL", "http://127.0.0.1:30000")
STATE = "n : Nat\n⊢ n + 0 = n"

_DECLARATIONS = ("theorem ", "lemma ", "example ", "example:")


def tactic_message(state: str) -> str:
    """The question that DeepSeek-Prover-V2 was trained on, for a Lean 4 proof state."""
    return f"Complete the following Lean 4 code:\n\n```lean4\n/- tactic state:\n{state}\n-/\n```"


def deepseek_chat(message: str) -> str:
    """DeepSeek's chat template for one message of the user, up to where the answer begins."""
    return f"<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>{message}<\uff5cAssistant\uff5c>"


def tactic_prompt(state: str) -> str:
    """The prompt whose continuation holds a tactic for a Lean 4 proof state, see `first_tactic`."""
    return deepseek_chat(tactic_message(state))


def first_tactic(text: str) -> str | None:
    """The first Lean 4 tactic of a prover's output.

    Out of a code fence if there is one; comments and declarations are skipped, but for what stands behind ``by`` on the
    declaration's own line. What is indented deeper than the tactic's first line belongs to it, and so does what closes
    its brackets.
    """
    lines = _without_comments(_fenced(text))
    while lines and (not lines[0].strip() or _is_declaration(lines[0])):
        _, by, rest = lines.pop(0).rpartition(" by ")
        if by and rest.strip():
            lines.insert(0, rest.strip())
            break
    if not lines:
        return None
    indent = _indent(lines[0])
    tactic = [lines[0].strip().removeprefix("·").strip()]
    for line in lines[1:]:
        inside = _open_brackets("\n".join(tactic))
        if line.strip() and _indent(line) <= indent and not inside:
            break
        tactic.append(line[indent:].rstrip() if _indent(line) >= indent else line.strip())
    return "\n".join(tactic).strip() or None


def _fenced(text: str) -> list[str]:
    """The lines inside the first code fence, or all lines if there is none."""
    lines = text.expandtabs(2).splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    if not fences:
        return lines
    end = fences[1] if len(fences) > 1 else len(lines)
    return lines[fences[0] + 1 : end]


def _without_comments(lines: list[str]) -> list[str]:
    """Without ``--`` lines and ``/- … -/`` blocks; a comment behind a tactic stays."""
    kept = []
    inside = False
    for line in lines:
        bare = line.strip()
        inside = inside or bare.startswith("/-")
        if not inside and not bare.startswith("--"):
            kept.append(line)
        inside = inside and "-/" not in bare
    return kept


def _is_declaration(line: str) -> bool:
    return line.lstrip().startswith(_DECLARATIONS)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _open_brackets(text: str) -> bool:
    opened = sum(text.count(bracket) for bracket in "([{⟨")
    return opened > sum(text.count(bracket) for bracket in ")]}⟩")


def main() -> None:
    """Print eight tactics at most, the most probable first, and the width of the state's embedding."""
    prompt = tactic_prompt(sys.argv[1] if len(sys.argv) > 1 else STATE)
    with connect(URL) as client:
        for tactic in client.generate_candidates(prompt, n=8, extract=first_tactic, max_new_tokens=32):
            print(f"{tactic.log_prob:8.2f}  {tactic.text}")
        print(f"embedding: {len(client.encode(prompt).numpy())} values")


if __name__ == "__main__":
    main()
