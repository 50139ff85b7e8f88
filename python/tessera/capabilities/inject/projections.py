"""Named linear projections: from the width of a vector to the model's H. A learned projection is a file."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from tessera.errors import BadRequest, StartRefused

SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Projection:
    """``y = W x + b`` in float32.

    Attributes:
        weight: ``[H, width]``, as ``torch.nn.Linear`` has it.
        bias: ``[H]``, or None.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def width(self) -> int:
        """The width of the vectors that it takes."""
        return int(self.weight.shape[1])

    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        """``[n, width]`` to ``[n, H]`` float32."""
        return torch.nn.functional.linear(vectors.float(), self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Projections:
    """What ``--injection-projections`` holds.

    Attributes:
        hidden_size: H of the model.
        named: by the file's name without its suffix.
    """

    hidden_size: int
    named: dict[str, Projection] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, hidden_size: int) -> Self:
        """Read every ``*.safetensors`` of a folder: ``weight`` ``[H, width]`` and, if there is one, ``bias`` ``[H]``.

        Raises:
            StartRefused: there is none, or one does not fit this model.
        """
        files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
        if not files:
            raise StartRefused(f"--injection-projections {folder}: no *{SUFFIX} file there")
        return cls(hidden_size, {path.name.removesuffix(SUFFIX): _load(path, hidden_size) for path in files})

    @property
    def widths(self) -> Iterable[int]:
        """Every width that some vector may have."""
        return {self.hidden_size, *(projection.width for projection in self.named.values())}

    def apply(self, parent: str, name: str | None, vectors: torch.Tensor) -> torch.Tensor:
        """Bring vectors ``[n, width]`` to ``[n, H]``. Those of width H without a name stay as they are.

        Args:
            parent: the object's name, for messages.
            name: of the projection; None takes the only one that fits.
            vectors: as they came.

        Raises:
            BadRequest: no such projection, none or several that fit.
        """
        width = int(vectors.shape[1])
        if name is None:
            return vectors if width == self.hidden_size else self._only(f"{parent}.projection", width).apply(vectors)
        if name not in self.named:
            raise BadRequest(f"{parent}.projection", name, self._names())
        projection = self.named[name]
        if projection.width != width:
            raise BadRequest(f"{parent}.projection", name, f"vectors of width {projection.width}; these have {width}")
        return projection.apply(vectors)

    def _only(self, where: str, width: int) -> Projection:
        fitting = [name for name, projection in self.named.items() if projection.width == width]
        if len(fitting) != 1:
            raise BadRequest(where, None, f"one of {', '.join(sorted(fitting))}: several take width {width}")
        return self.named[fitting[0]]

    def _names(self) -> str:
        return ", ".join(sorted(self.named)) or "none: start the server with --injection-projections"


def _load(path: Path, hidden_size: int) -> Projection:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StartRefused(f"--injection-projections: {path} cannot be read: {error}") from error
    unknown = sorted(set(tensors) - {"weight", "bias"})
    if "weight" not in tensors or unknown:
        raise StartRefused(f"--injection-projections: {path} must hold weight and perhaps bias, not {sorted(tensors)}")
    weight, bias = tensors["weight"].float(), tensors.get("bias")
    if weight.ndim != 2 or weight.shape[0] != hidden_size:  # noqa: PLR2004 - a matrix
        shape = f"[{hidden_size}, width]"
        raise StartRefused(f"--injection-projections: weight of {path} has shape {list(weight.shape)}, needs {shape}")
    if bias is not None and bias.shape != (hidden_size,):
        raise StartRefused(f"--injection-projections: bias of {path} has {list(bias.shape)}, needs [{hidden_size}]")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise StartRefused(f"--injection-projections: {path} holds NaN or infinity")
    return Projection(weight, None if bias is None else bias.float())
