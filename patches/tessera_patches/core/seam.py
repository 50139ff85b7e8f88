"""What a seam is: one place in SGLang that Tessera changes, how, why, and what must hold there."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from tessera.versions import within


class Hook(StrEnum):
    """How a place is changed.

    The first four are those of SGLang's hook registry (``sglang.srt.plugins.hook_registry.HookType``). It has nothing
    for the others: the handler makes these changes, with the functions of `tessera_patches.core.changes`.
    """

    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"
    METHOD = "method"
    """Some objects get another function for this method, for good or for a block."""
    CLASS = "class"
    """Some objects of this class become objects of a subclass."""
    SUBCLASS = "subclass"
    """SGLang gets objects of a subclass where it would have made its own."""
    VALUE = "value"
    """A field, an environment variable or a function of torch gets another value, for good or for a block."""
    OBJECT = "object"
    """Something is added to or removed from an object in one of SGLang's modules; or a signal gets our handler."""
    TENSOR = "tensor"
    """This function gets a subclass of ``torch.Tensor``, for which one of its operations does something else."""
    OPERATOR = "operator"
    """The torch operator that this function calls is ours."""


REGISTERED = frozenset({Hook.BEFORE, Hook.AFTER, Hook.AROUND, Hook.REPLACE})
"""Those that SGLang's hook registry installs."""


class Phase(StrEnum):
    """When a seam is installed; one that no registry installs: when it is compared with the lock file."""

    CPU = "cpu"
    """In every process that loads plugins on a machine without a GPU."""
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
    FIELD = "field"
    """Which methods of its class set it."""


class Runs(StrEnum):
    """By when a seam must have been reached; a server in which it was not does not serve.

    What is counted differs by kind. Of the registry's four and of `Hook.METHOD`: calls, but those that torch compiles.
    `Hook.CLASS`, `Hook.SUBCLASS` and a class that `Hook.REPLACE` puts in place: objects of it. `Hook.TENSOR` and
    `Hook.OPERATOR`: its operation. `Hook.VALUE` and `Hook.OBJECT`: how often it was set or changed. Whether SGLang
    reads a value cannot be seen: the lock file has who does.
    """

    START = "start"
    """When every scheduler is ready."""
    HTTP = "http"
    """When the HTTP application starts."""
    REQUEST = "first token"
    """When a request is answered with a token, which calls before the first request do not show."""
    DECODE = "second token"
    """When a request is answered with two tokens."""
    WARM_UP = "warm-up"
    """When SGLang's own first request has its answer; with ``--skip-server-warmup`` nothing is asked."""
    ON_DEMAND = "on demand"
    """It depends on requests, the model or the device: a count of 0 shows nothing. `Seam.called_by` says on what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """One place in SGLang that Tessera changes.

    Attributes:
        target: dotted path of the function, method, class or module's variable in SGLang; with `Guard.FIELD` of a
            class's field.
        hook: how it is changed.
        feature: the feature that needs it, or several with ", " between them; "" is needed by all.
        handler: our ``module:name``, imported only when the seam is installed: what the registry calls, else what
            makes the change, or the class.
        why: what it is for.
        remove_when: the upstream change that would make it unnecessary.
        phase: in which process, and when; by default in schedulers, as most are.
        guard: what is compared with the lock file; by default the whole body, the strictest.
        callers: dotted paths in SGLang that must still call the target or hand it on, or read the field, or the change
            would do nothing.
        relied: dotted paths of what the handler extends, or whose inner workings it needs; locked with their bodies.
        writes: dotted paths of fields that the handler, or what it calls, sets on the objects that it is handed; or it
            rewrites in place what is there.
        runs: by when it must have been reached.
        runs_with: features, or conditions of `tessera.config.CONDITIONS`, with one of which that holds, with ", "
            between them; "" is whatever the feature needs.
        called_by: of `Runs.ON_DEMAND`: which request, model or device comes to it.
        versions: the versions of SGLang that need it, as a specifier; "" is all.
        moved: another dotted path of the target, and which versions have it there; "" where all have it in one place.
        moved_why: what SGLang does otherwise in these; "" where all have it in one place.
        differs: what our code does otherwise in some versions, and why; "" where it does the same in all, though a path
            may be of some alone, or the adapter may read a value from another place.

    A path in ``callers``, ``relied`` or ``writes`` that some versions alone have, and ``moved``, end with a specifier
    of these: ``sglang.srt.a.b; <0.5.20``. `at` leaves out what a version does not have.
    """

    target: str
    hook: Hook
    feature: str
    handler: str
    why: str
    remove_when: str
    phase: Phase = Phase.SCHEDULER
    guard: Guard = Guard.BODY
    callers: tuple[str, ...] = ()
    relied: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    runs: Runs = Runs.ON_DEMAND
    runs_with: str = ""
    called_by: str = ""
    versions: str = ""
    moved: str = ""
    moved_why: str = ""
    differs: str = ""

    def at(self, sglang_version: str) -> Self | None:
        """The seam as one version needs it; None where it does not."""
        if not within(sglang_version, self.versions):
            return None
        callers, relied, writes = (
            _of_version(paths, sglang_version) for paths in (self.callers, self.relied, self.writes)
        )
        moved = _of_version((self.moved,) if self.moved else (), sglang_version)
        return replace(self, target=(*moved, self.target)[0], callers=callers, relied=relied, writes=writes)

    @property
    def name(self) -> str:
        """The target; with the handler where SGLang's registry does not install it, for several change one object."""
        return self.target if self.registered else f"{self.target}({self.handler.removeprefix('tessera_patches.')})"

    @property
    def registered(self) -> bool:
        """Whether SGLang's hook registry installs it."""
        return self.hook in REGISTERED

    def must_run(self, on: set[str]) -> bool:
        """Whether `runs` holds with these features and conditions."""
        return not self.runs_with or not on.isdisjoint(self.runs_with.split(", "))

    @property
    def guards(self) -> dict[str, Guard]:
        """Everything of SGLang's that it needs as it is, by dotted path."""
        relied = dict.fromkeys(self.relied, Guard.BODY)
        return {self.target: self.guard, **relied, **dict.fromkeys(self.writes, Guard.FIELD)}


def _of_version(paths: tuple[str, ...], sglang_version: str) -> tuple[str, ...]:
    """The dotted paths that a version has.

    Args:
        paths: those of some versions alone end with a specifier, as a requirement does: ``sglang.a.b; <0.5.20``.
        sglang_version: the version.
    """
    split = [path.partition("; ") for path in paths]
    return tuple(path for path, _, specifier in split if within(sglang_version, specifier))
