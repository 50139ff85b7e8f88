"""What the modules of a model return in one forward: its embedding layer, the state after its last norm, its rows."""

from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from types import TracebackType
from typing import Any, Self

import torch

_LARGEST_TERM = 256
"""Models multiply by quotients of small integers, such as widths; rounded to one, a factor is the same everywhere."""
_PROPORTIONAL = 2e-2


class ForwardNotes:
    """Forward hooks on every module, as a context manager around one forward of one prompt.

    Args:
        model: the module that computes.
        head: the class of what makes logits of rows.
        ids: of the prompt.
        width: H, of embeddings and rows.

    Attributes:
        embedding: the outermost module that made embeddings of the ids, and nothing else, or None.
        embeds: what it returned, ``[n, H]``.
        state: what the last module without parts returned before the head, ``[n, H]``.
        rows: what the head was given, ``[n, H]``.
        called: how often torch called these hooks.
    """

    def __init__(self, model: torch.nn.Module, head: type, ids: Sequence[int], width: int) -> None:
        self.embedding: torch.nn.Module | None = None
        self.embeds: torch.Tensor | None = None
        self.state: torch.Tensor | None = None
        self.rows: torch.Tensor | None = None
        self.called = 0
        self._model, self._head = model, head
        self._ids, self._shape = torch.tensor(ids), (len(ids), width)
        self._embedded = False
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for module in self._model.modules():
            if isinstance(module, self._head):
                hook = module.register_forward_pre_hook(self._note_rows, with_kwargs=True)
            else:
                hook = module.register_forward_hook(self._note_output)
            self._hooks.callback(hook.remove)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._hooks.close()

    def _note_rows(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.called += 1
        given = kwargs["hidden_states"] if "hidden_states" in kwargs else args[1]
        if self.rows is None and (found := self._matrix(given)) is not None:
            self.rows = found

    def _note_output(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.called += 1
        found = None if self.rows is not None else self._matrix(output)
        if found is None:
            return
        if not self._embedded:
            self._note_embedding(module, args, found)
        if next(module.children(), None) is None:
            self.state = found

    def _note_embedding(self, module: torch.nn.Module, args: tuple[Any, ...], found: torch.Tensor) -> None:
        """Modules finish from the inside out: an adapter around the layer, say, follows it at once."""
        if args and self._are_ids(args[0]):
            self.embedding, self.embeds = module, found
        else:
            self._embedded = self.embedding is not None

    def _are_ids(self, given: Any) -> bool:
        same = isinstance(given, torch.Tensor) and given.shape == self._ids.shape and not given.is_floating_point()
        return bool(same and torch.equal(given.cpu().long(), self._ids))

    def _matrix(self, output: Any) -> torch.Tensor | None:
        """A copy of ``[n, H]``, alone or first in a tuple: a norm that adds a residual returns both."""
        first = output[0] if isinstance(output, tuple) and output else output
        same = isinstance(first, torch.Tensor) and first.shape == self._shape
        return first.detach().clone() if same else None


def factor_of(rows: torch.Tensor, state: torch.Tensor) -> float | None:
    """What the state ``[n, H]`` was multiplied by to give the rows, 1 where it was not; None if they are others."""
    if torch.equal(rows, state):
        return 1.0
    wide, base = rows.double(), state.double()
    found = float((wide * base).sum() / (base * base).sum())
    if not distance(rows, state.double() * found) <= _PROPORTIONAL:
        return None
    exact = Fraction(1 / found).limit_denominator(_LARGEST_TERM)
    return float(1 / exact) if exact else found


def distance(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """The median over tokens of a row's relative error: one token that a mixture routes otherwise does not count."""
    if found is None or expected is None:
        return float("nan")
    wide, base = found.double(), expected.double()
    errors = torch.linalg.vector_norm(wide - base, dim=1) / torch.linalg.vector_norm(base, dim=1)
    return float(errors.median())
