"""A toy of theorem proving: write the body of a Python function, line by line, past a checker that knows no mercy.

The state is the code so far, a tactic is the next line, and the checker plays the proof assistant: what does not parse
is refused, and so is a name that nobody has defined, a line that says nothing new, or another function inside. The
proof is complete when the function returns.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass

INDENT = "    "
KNOWN = frozenset(dir(builtins))
MOST_LINES = 12
"""Of a body; a model that fails to end one goes on for ever."""


@dataclass(frozen=True)
class State:
    """A function so far: its ``def`` line with a docstring, and the lines of its body."""

    header: str
    lines: tuple[str, ...] = ()
    log_prob: float = 0.0

    @property
    def code(self) -> str:
        """What a model continues. No line feed at the end: to most tokenizers it is one token with the indentation."""
        return "\n".join((self.header, *self.lines))

    def after(self, line: str, log_prob: float) -> State:
        """With one more line."""
        return State(self.header, (*self.lines, line), self.log_prob + log_prob)


def next_line(text: str) -> str | None:
    """The tactic in a generated text: its first whole line of code, behind the line feed that ends the one before."""
    before, *lines = text.split("\n")
    code = [line.rstrip() for line in lines[:-1] if line.strip() and not line.lstrip().startswith(("#", '"""'))]
    return code[0] if code and not before.strip() else None


def refused(state: State) -> bool:
    """Whether the checker refuses a state: too long, no step forward, not Python, or it reads an unknown name."""
    *before, last = state.lines
    if len(before) >= MOST_LINES or last in before[-1:] or last.lstrip().startswith(("def ", "class ")):
        return True
    if not last.startswith(INDENT) or (len(last) - len(last.lstrip())) % len(INDENT):
        return True
    open_block = f"\n{last[: len(last) - len(last.lstrip())]}{INDENT}pass" if last.endswith(":") else ""
    try:
        function = ast.parse(state.code + open_block).body[0]
    except (SyntaxError, ValueError):
        return True
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return any(name.id not in KNOWN | arguments | stored for name in names)


def solved(state: State, *, least_lines: int) -> bool:
    """Whether the function is complete: its body is not trivial, and ends by returning something on its own level."""
    last = state.lines[-1] if state.lines else ""
    return len(state.lines) >= least_lines and last.startswith(f"{INDENT}return ") and len(set(state.lines)) > 1
