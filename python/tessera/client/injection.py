"""Vectors to be put into the embeddings of a prompt (docs/guide/injection.md): numpy in, binary out."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Token = int | str
"""A token by its id or by its text."""


@dataclass(frozen=True, slots=True, eq=False)
class Injection:
    """Vectors and where they go: at ``positions``, or where ``token`` stands.

    Attributes:
        vectors: ``[n, width]``, or ``[width]`` for one. float16 is sent as it is, all else as float32.
        positions: token position of each vector, from 0.
        token: it must stand in the prompt as often as there are vectors.
        mode: in place of the embedding that is there, or added to it.
        scale: a factor, or ``"norm-matched"``: each gets the length of the embedding that it meets.
        projection: name of a projection on the server, for vectors of another width than the model's.
        left: the token that must stand left of each position; anything by default.
        right: the same on the right.
    """

    vectors: npt.ArrayLike
    positions: Sequence[int] | None = None
    token: Token | None = None
    mode: Literal["replace", "add"] = "replace"
    scale: float | Literal["norm-matched"] | None = None
    projection: str | None = None
    left: Token | None = None
    right: Token | None = None

    def field(self) -> dict[str, Any]:
        """One object of ``input_embed_overrides``.

        Raises:
            ValueError: not one or two dimensions, or neither or both of positions and token.
        """
        vectors = np.atleast_2d(np.asarray(self.vectors))
        if vectors.ndim != 2:  # noqa: PLR2004 - rows and width
            raise ValueError(f"vectors of an injection have the shape [n, width], not {vectors.shape}")
        if (self.positions is None) == (self.token is None):
            raise ValueError("an injection has either positions or a token")
        kind = "float16" if vectors.dtype == np.float16 else "float32"
        fields = {
            "positions": None if self.positions is None else [int(position) for position in self.positions],
            "token": self.token,
            "embeds": base64.b64encode(vectors.astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode(),
            "shape": list(vectors.shape),
            "dtype": kind,
            "mode": self.mode,
            "scale": self.scale,
            "projection": self.projection,
            "expect_neighbours": {k: v for k, v in (("left", self.left), ("right", self.right)) if v is not None},
        }
        return {name: value for name, value in fields.items() if value not in (None, {})}
