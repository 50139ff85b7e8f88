"""What a seam is: one place in SGLang that Tessera hooks, why, and what must hold there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Hook(StrEnum):
    """How SGLang's hook registry wraps the target (``sglang.srt.plugins.hook_registry.HookType``)."""

    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class Phase(StrEnum):
    """When a seam is installed."""

    LOAD = "load"
    """In every process that loads plugins, before arguments are parsed."""
    MAIN = "main"
    """In the process that parsed the arguments, once they are known."""
    SCHEDULER = "scheduler"
    """In every process that the main process starts."""


class Guard(StrEnum):
    """What the lock file holds for the target; a difference ends the start."""

    PARAMETERS = "parameters"
    """The names of its parameters: enough where a function is only wrapped."""
    BODY = "body"
    """A hash of its syntax tree as well: where we replace it, or rely on what it does inside."""


@dataclass(frozen=True, slots=True)
class Seam:
    """One hook.

    Attributes:
        target: dotted path of the function, method or class in SGLang.
        hook: how it is wrapped.
        phase: in which process, and when.
        feature: the feature that needs it, or several with ", " between them; "" is needed by all.
        handler: ``module:name`` of ours, imported only when the seam is installed.
        guard: what is compared with the lock file.
        why: what it is for.
        remove_when: the upstream change that would make it unnecessary.
        callers: dotted paths in SGLang that must still call the target, or it would never run.
        relied: dotted paths of what the handler extends, or whose inner workings it needs; locked with their bodies.
    """

    target: str
    hook: Hook
    phase: Phase
    feature: str
    handler: str
    guard: Guard
    why: str
    remove_when: str
    callers: tuple[str, ...] = ()
    relied: tuple[str, ...] = ()
