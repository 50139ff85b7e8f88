"""A long list of inputs in requests of a size that keeps a server busy, and the matrix that they fill."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from tessera.client.errors import InvalidResponse, StatusError
from tessera.client.options import Prompt
from tessera.client.results import Embeddings, Floats

_ITEM = re.compile(r"input\[(\d+)\]")
CHUNK = 256
"""Inputs in one request: enough for a server to fill its batches, small beside the whole result."""
CHUNK_CHARACTERS = 4_000_000
"""Characters in one request at most: in JSON at most 48 of the 64 MiB that a server reads."""
IN_FLIGHT = 4
"""Requests at once: the server never waits for the next one while it is written and read here."""


def request_slices(inputs: Sequence[Prompt]) -> Iterator[slice]:
    """Slices of ``inputs``, in order, each for one request."""
    begin = characters = 0
    for i, text in enumerate(inputs):
        size = len(text)
        if i > begin and (i - begin == CHUNK or characters + size > CHUNK_CHARACTERS):
            yield slice(begin, i)
            begin, characters = i, 0
        characters += size
    if begin < len(inputs):
        yield slice(begin, len(inputs))


def with_list_index(error: StatusError, first: int | None) -> StatusError:
    """The error about ``input[i]`` of one request as one about an item of the caller's list.

    Args:
        error: of the server; changed.
        first: place of the request's first input in the list; None where there is no list.
    """
    found = _ITEM.match(error.field or "")
    if found is not None and error.field is not None:
        name = "text" if first is None else f"texts[{first + int(found[1])}]"
        error.args = (str(error).replace(found[0], name, 1),)
        error.field = name + error.field[found.end() :]
    return error


class Matrix:
    """Collects the answers to the chunks, in any order, without holding any of them twice.

    Args:
        count: how many inputs there are in all.
    """

    def __init__(self, count: int) -> None:
        self._rows: Floats | None = None
        self._count = count
        self._tokens = 0
        self.done = 0

    def add(self, where: slice, part: Embeddings) -> None:
        """Copy one answer to its place.

        Raises:
            InvalidResponse: its vectors are of another width than those before.
        """
        if self._rows is None:
            self._rows = np.empty((self._count, part.matrix.shape[1]), np.float32)
        if part.matrix.shape[1] != self._rows.shape[1]:
            raise InvalidResponse(
                f"vectors of {part.matrix.shape[1]} values came after some of {self._rows.shape[1]}: is it one server?"
            )
        self._rows[where] = part.matrix
        self._tokens += part.prompt_tokens
        self.done += len(part)

    def whole(self) -> Embeddings:
        """The vectors of all inputs.

        Raises:
            InvalidResponse: some are missing.
        """
        if self.done != self._count:
            raise InvalidResponse(f"{self.done} of {self._count} embeddings came")
        return Embeddings(np.empty((0, 0), np.float32) if self._rows is None else self._rows, self._tokens)
